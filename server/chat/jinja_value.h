// The values of a template while it is rendered: Python's, as far as Jinja shows them.
//
// Values share what they hold, and nothing that is held changes, except for a namespace's
// attributes, a loop's state and how far an iterator has come; these are made during one rendering
// and belong to it. Depth is limited to kValueDepthMax, so that no walk over a value nests further.
// One thread at a time; constants of a parsed template: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace spillway::jinja {

constexpr int kValueDepthMax = 64;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kSequence,
  kDict,
  kNamespace,
  kLoop,
  kCallable,
};

struct Sequence;
struct Dict;
struct Namespace;
struct Loop;
struct Callable;

class Value {
 public:
  Value() = default;  // Undefined
  // `why` is the message of an error that uses it: "'x' is undefined".
  static Value undefined(std::string why);
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value real(double value);
  static Value string(std::string utf8);
  static Value of(std::shared_ptr<Sequence> value);
  static Value of(std::shared_ptr<Dict> value);
  static Value of(std::shared_ptr<Namespace> value);
  static Value of(std::shared_ptr<Loop> value);
  static Value of(std::shared_ptr<Callable> value);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_string() const { return is(Kind::kString); }
  bool is_integral() const { return is(Kind::kInt) || is(Kind::kBool); }  // True is 1, as in Python
  bool is_number() const { return is_integral() || is(Kind::kFloat); }

  bool as_bool() const { return integer_ != 0; }  // REQUIRES: kBool
  int64_t as_int() const { return integer_; }     // REQUIRES: is_integral()
  double as_real() const;                         // REQUIRES: is_number()
  const std::string& as_string() const;           // REQUIRES: kString
  Sequence& as_sequence() const;                  // REQUIRES: kSequence
  const Dict& as_dict() const;                    // REQUIRES: kDict
  Namespace& as_namespace() const;                // REQUIRES: kNamespace
  Loop& as_loop() const;                          // REQUIRES: kLoop
  const Callable& as_callable() const;            // REQUIRES: kCallable
  const std::string& why_undefined() const;       // REQUIRES: kUndefined
  const void* identity() const { return object_.get(); }
  int depth() const;  // 1 for a list of numbers, 2 for a list of such lists

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  Value(Kind kind, std::shared_ptr<void> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind_ = Kind::kUndefined;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<void> object_;
};

// Lists, tuples, ranges, a dict's views, and iterators, which are used up as they are read.
struct Sequence {
  enum class Form : uint8_t { kList, kTuple, kRange, kKeys, kValues, kItems, kIterator };
  Form form = Form::kList;
  std::vector<Value> items;
  size_t used = 0;    // kIterator: items before this one have been read
  std::string label;  // kRange: as Python prints it
  int depth = 1;

  bool subscripts() const {  // Whether x[0] and slices are possible
    return form == Form::kList || form == Form::kTuple || form == Form::kRange;
  }
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;        // In order of insertion
  std::unordered_map<std::string_view, size_t> names;  // Of keys that are strings
  int depth = 1;

  const Value* find(std::string_view name) const;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
};

// Something to call: a macro of the template, a method bound to `self`, or a global function.
struct Callable {
  enum class What : uint8_t { kMacro, kMethod, kFunction };
  What what = What::kFunction;
  std::string name;
  Value self;                   // kMethod
  const void* macro = nullptr;  // kMacro: its statement in the template
};

// What `loop` is within a for loop.
struct Loop {
  std::function<bool(Value*)> advance;  // The next item; empty once the loop has ended
  std::deque<Value> ahead;              // Items that `last`, `nextitem` or `length` asked for
  bool ended = false;                   // advance() has no more
  bool sized = false;                   // `length` is known
  int64_t length = 0;
  int64_t index0 = -1;
  Value previous, current;
  int depth = 1;

  bool next(Value* item);  // Moves on to the next item; false: there is none
  bool peek();             // Whether there is a next item, which then is ahead.front()
  int64_t count();         // All items, those ahead included
};

// Python's name of a value's type: "str", "dict".
std::string_view type_name(const Value& value);

bool truth(const Value& value);

}  // namespace spillway::jinja
