// What one rendering of a template may use, its first error, and values made within these limits.
//
// After the first error every function here and in the files that take a Run returns something
// empty at once, so that callers check failed() in loops and at their end only. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "server/chat/jinja_template.h"
#include "server/chat/jinja_value.h"

namespace spillway::jinja {

// Arguments of a call, a filter or a test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  bool empty() const { return positional.empty() && named.empty(); }
};

class Run {
 public:
  explicit Run(const JinjaLimits& limits) : steps_(limits.steps), bytes_(limits.bytes) {}
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Pay for work and memory; false: nothing is left, or there was an error before.
  bool step(uint64_t count = 1);
  bool read(size_t bytes) { return step(1 + bytes / 16); }  // For a pass over so many bytes
  bool take(size_t bytes);

  void at_line(int line) { line_ = line; }
  int line() const { return line_; }
  bool failed() const { return failed_; }
  void fail(std::string message);              // Keeps the first
  void use_undefined(const Value& undefined);  // fail() with the reason
  void fail_unsupported(const std::string& what) { fail(what + " is not supported"); }
  Status status() const;  // kInvalidArgument: "line 3: ..."

  // A level deeper into the template's tree; false at the limit. leave() follows either.
  bool enter();
  void leave() { --level_; }

  Value string(std::string text);
  Value sequence(Sequence::Form form, std::vector<Value> items);
  Value list(std::vector<Value> items) { return sequence(Sequence::Form::kList, std::move(items)); }
  Value iterator(std::vector<Value> items) {
    return sequence(Sequence::Form::kIterator, std::move(items));
  }
  // Later values replace earlier ones of an equal key, in their place. Keys must be hashable.
  Value dict(std::vector<std::pair<Value, Value>> entries);
  Value name_space(std::vector<std::pair<std::string, Value>> attributes);

 private:
  uint64_t steps_;
  size_t bytes_;
  int line_ = 1;
  int level_ = 0;
  bool failed_ = false;
  std::string message_;
  int failed_line_ = 0;
  std::vector<std::shared_ptr<Namespace>>
      namespaces_;  // All; emptied at the end: they may form rings
};

// The arguments in the order of `names`; a missing one is null. Fails on too many, unknown and
// twice given ones. `what` names the callee: "filter 'trim'".
std::vector<const Value*> bind_arguments(Run& run, const std::string& what,
                                         const Arguments& arguments,
                                         std::initializer_list<std::string_view> names);

}  // namespace spillway::jinja
