#include "server/chat/jinja_attributes.h"

#include <algorithm>

#include "kernels/base/quote.h"
#include "server/chat/jinja_compare.h"
#include "server/chat/jinja_methods.h"
#include "server/chat/jinja_text.h"

namespace spillway::jinja {
namespace {

using Form = Sequence::Form;

// What getattr() finds.
enum class Found : uint8_t { kNothing, kMethod, kUnsafe, kUnsupported };

bool is_among(std::string_view name, std::string_view names) {
  // `names`: words between blanks.
  for (size_t at = names.find(name); at != names.npos; at = names.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || names[at - 1] == ' ') && (end == names.size() || names[end] == ' '))
      return true;
  }
  return false;
}

Found among(std::string_view name, std::string_view ours, std::string_view unsafe,
            std::string_view others) {
  if (is_among(name, ours)) return Found::kMethod;
  if (is_among(name, unsafe)) return Found::kUnsafe;
  return is_among(name, others) ? Found::kUnsupported : Found::kNothing;
}

Found find_of_sequence(const Sequence& sequence, std::string_view name) {
  switch (sequence.form) {
    case Form::kList:
      return among(name, "", "append clear pop reverse insert sort extend remove",
                   "copy count index");
    case Form::kTuple:
      return among(name, "", "", "count index");
    case Form::kRange:
      return among(name, "", "", "count index start stop step");
    case Form::kIterator:
      return among(name, "", "gi_frame gi_code",
                   "close send throw gi_running gi_yieldfrom gi_suspended");
    default:
      return among(name, "", "", "isdisjoint mapping");
  }
}

Found find_attribute(const Value& value, std::string_view name) {
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) return Found::kUnsafe;
  switch (value.kind()) {
    case Kind::kString:
      return among(
          name, kStringMethods, "",
          "casefold center encode expandtabs format format_map index isalnum isalpha isascii "
          "isdecimal isidentifier islower isnumeric isprintable istitle isupper ljust "
          "maketrans partition rindex rjust rpartition swapcase translate zfill");
    case Kind::kDict:
      return among(name, kDictMethods, "clear pop popitem setdefault update", "copy fromkeys");
    case Kind::kSequence:
      return find_of_sequence(value.as_sequence(), name);
    case Kind::kBool:
    case Kind::kInt:
      return among(
          name, "", "",
          "real imag numerator denominator conjugate bit_length bit_count to_bytes from_bytes "
          "as_integer_ratio");
    case Kind::kFloat:
      return among(name, "", "", "real imag conjugate as_integer_ratio is_integer hex fromhex");
    case Kind::kLoop:
      return among(name, "cycle", "", "changed");
    case Kind::kCallable:
      return Found::kUnsupported;
    default:
      return Found::kNothing;
  }
}

// The values among the attributes of `loop`; false: it has no such one.
bool loop_attribute(Run& run, Loop& loop, const std::string& name, Value* found) {
  const auto integer = [&](int64_t value) { *found = Value::integer(value); };
  if (name == "index0") {
    integer(loop.index0);
  } else if (name == "index") {
    integer(loop.index0 + 1);
  } else if (name == "first") {
    *found = Value::boolean(loop.index0 == 0);
  } else if (name == "last") {
    *found = Value::boolean(!loop.peek());
  } else if (name == "length") {
    integer(loop.count());
  } else if (name == "revindex") {
    integer(loop.count() - loop.index0);
  } else if (name == "revindex0") {
    integer(loop.count() - loop.index0 - 1);
  } else if (name == "depth" || name == "depth0") {
    integer(name == "depth" ? 1 : 0);
  } else if (name == "previtem") {
    *found = loop.index0 == 0 ? Value::undefined("there is no previous item") : loop.previous;
  } else if (name == "nextitem") {
    *found = loop.peek() ? loop.ahead.front() : Value::undefined("there is no next item");
  } else {
    return false;
  }
  return run.step();
}

Value not_found(const Value& value, const std::string& shown) {
  return Value::undefined("a " + std::string(type_name(value)) + " has no attribute " + shown);
}

// What getattr() gives; true unless it finds nothing.
bool get_attribute(Run& run, const Value& value, const std::string& name, Value* found) {
  if (value.is(Kind::kLoop) && loop_attribute(run, value.as_loop(), name, found)) return true;
  if (value.is(Kind::kNamespace)) {
    const Value* attribute = value.as_namespace().find(name);
    if (attribute == nullptr) return false;
    // The sandbox hides names that begin with an underscore.
    *found = name[0] == '_' ? not_found(value, in_quotes(name)) : *attribute;
    return true;
  }
  switch (find_attribute(value, name)) {
    case Found::kNothing:
      return false;
    case Found::kUnsafe:
      *found = Value::undefined("the attribute " + in_quotes(name) + " of a " +
                                std::string(type_name(value)) + " is not for templates");
      return true;
    case Found::kUnsupported:
      run.fail_unsupported("the attribute " + in_quotes(name) + " of a " +
                           std::string(type_name(value)));
      return true;
    case Found::kMethod:
      break;
  }
  auto method = std::make_shared<Callable>();
  method->what = Callable::What::kMethod;
  method->name = name;
  method->self = value;
  if (run.take(128)) *found = Value::of(std::move(method));
  return true;
}

bool index_of(const Value& key, size_t size, size_t* index) {
  if (!key.is_integral()) return false;
  int64_t place = key.as_int();
  const auto length = static_cast<int64_t>(size);
  if (place < 0) place += length;
  *index = static_cast<size_t>(place);
  return place >= 0 && place < length;
}

// value[key] without the attributes; false: there is no such entry.
bool get_item(Run& run, const Value& value, const Value& key, Value* found) {
  size_t index = 0;
  if (value.is(Kind::kDict)) {
    bool hashable = true;
    const Value* entry = find_entry(run, value.as_dict(), key, &hashable);
    if (entry != nullptr) *found = *entry;
    return entry != nullptr;
  }
  if (value.is_string()) {
    const std::string& text = value.as_string();
    if (!key.is_integral() || !run.read(text.size())) return false;
    size_t at = 0;
    if (!index_of(key, static_cast<size_t>(length_of(value)), &index)) return false;
    for (; index > 0; --index) next_character(text, &at);
    const size_t begin = at;
    next_character(text, &at);
    *found = run.string(text.substr(begin, at - begin));
    return true;
  }
  if (!value.is(Kind::kSequence) || !value.as_sequence().subscripts()) return false;
  const Sequence& sequence = value.as_sequence();
  if (!index_of(key, sequence.items.size(), &index)) return false;
  *found = sequence.items[index];
  return true;
}

}  // namespace

Value attribute(Run& run, const Value& value, const std::string& name) {
  if (run.failed()) return {};
  if (value.is_undefined()) {
    run.use_undefined(value);
    return {};
  }
  Value found;
  if (get_attribute(run, value, name, &found)) return found;
  if (value.is(Kind::kDict)) {
    if (const Value* entry = value.as_dict().find(name)) return *entry;
  }
  return not_found(value, in_quotes(name));
}

Value item(Run& run, const Value& value, const Value& key) {
  if (run.failed()) return {};
  if (value.is_undefined()) {
    run.use_undefined(value);
    return {};
  }
  Value found;
  if (get_item(run, value, key, &found) || run.failed()) return found;
  if (key.is_string() && get_attribute(run, value, key.as_string(), &found)) return found;
  return not_found(value, key.is_string() ? in_quotes(key.as_string()) : "of that index");
}

}  // namespace spillway::jinja
