#include "server/chat/jinja_methods.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "kernels/base/quote.h"
#include "server/chat/jinja_attributes.h"
#include "server/chat/jinja_compare.h"
#include "server/chat/jinja_operators.h"
#include "server/chat/jinja_text.h"

namespace spillway::jinja {
namespace {

using Form = Sequence::Form;

// A method's arguments by name, with checks of their types.
class Bound {
 public:
  Bound(Run& run, const std::string& method, const Arguments& arguments,
        std::initializer_list<std::string_view> names)
      : run_(run),
        method_("the method " + method + "()"),
        values_(bind_arguments(run, method_, arguments, names)) {}

  bool has(size_t i) const { return values_[i] != nullptr && !values_[i]->is(Kind::kNone); }
  const Value* value(size_t i) const { return values_[i]; }

  const std::string& text(size_t i) const {
    static const std::string kEmpty;
    if (values_[i] != nullptr && values_[i]->is_string()) return values_[i]->as_string();
    run_.fail(method_ + " needs a string" +
              (values_[i] ? ", not a " + std::string(type_name(*values_[i])) : ""));
    return kEmpty;
  }

  int64_t integer(size_t i, int64_t otherwise) const {
    if (values_[i] == nullptr) return otherwise;
    if (values_[i]->is_integral()) return values_[i]->as_int();
    run_.fail(method_ + " needs an integer, not a " + std::string(type_name(*values_[i])));
    return otherwise;
  }

 private:
  Run& run_;
  std::string method_;
  std::vector<const Value*> values_;
};

bool refuses_names(Run& run, const std::string& name, const Arguments& arguments) {
  if (!arguments.named.empty()) run.fail("the method " + name + "() takes no named arguments");
  return run.failed();
}

Value list_of(Run& run, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(run.string(std::string(part)));
  return run.list(std::move(items));
}

// str.split() and rsplit() at white space.
std::vector<std::string_view> split_at_space(Run& run, std::string_view text, int64_t most,
                                             bool right) {
  std::vector<std::string_view> parts;
  text = strip(text, !right, right);
  while (!text.empty() && run.step()) {
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      parts.push_back(strip(text, !right, right));
      break;
    }
    if (right) {
      size_t begin = text.size();
      std::string_view word = text;
      while (!word.empty() && strip(word, false, true).size() == word.size()) {
        do {
          --begin;
        } while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80);
        word = text.substr(0, begin);
      }
      parts.push_back(text.substr(begin));
      text = strip(word, false, true);
    } else {
      size_t end = 0;
      while (end < text.size() && skip_space(text, end) == end) next_character(text, &end);
      parts.push_back(text.substr(0, end));
      text = strip(text.substr(end), true, false);
    }
  }
  if (right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_at(Run& run, std::string_view text, std::string_view by,
                                       int64_t most, bool right) {
  std::vector<std::string_view> parts;
  while (run.step() && (most < 0 || static_cast<int64_t>(parts.size()) < most)) {
    const size_t found = right ? text.rfind(by) : find_text(text, by);
    if (found == text.npos) break;
    parts.push_back(right ? text.substr(found + by.size()) : text.substr(0, found));
    text = right ? text.substr(0, found) : text.substr(found + by.size());
  }
  parts.push_back(text);
  if (right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split(Run& run, const std::string& text, const std::string& name,
            const Arguments& arguments) {
  const Bound bound(run, name, arguments, {"sep", "maxsplit"});
  const int64_t most = bound.integer(1, -1);
  const bool right = name == "rsplit";
  if (run.failed()) return {};
  if (!bound.has(0)) return list_of(run, split_at_space(run, text, most, right));
  const std::string& by = bound.text(0);
  if (by.empty()) run.fail("split() at an empty string");
  // std::string::rfind compares at every place; find_text() is linear.
  if (run.failed() || (right && !run.step(1 + text.size() / 16 * (1 + by.size() / 4)))) return {};
  return list_of(run, split_at(run, text, by, most, right));
}

Value starts_or_ends(Run& run, const std::string& text, const std::string& name,
                     const Arguments& arguments) {
  const bool start = name == "startswith";
  const Bound bound(run, name, arguments, {"", " ", "  "});
  if (bound.has(1) || bound.has(2))
    run.fail_unsupported("a place to search from in " + name + "()");
  if (run.failed()) return {};
  const auto fits = [&](const std::string& part) {
    return start ? std::string_view(text).starts_with(part)
                 : std::string_view(text).ends_with(part);
  };
  const Value* value = bound.value(0);
  if (value != nullptr && value->is(Kind::kSequence) && value->as_sequence().form == Form::kTuple) {
    for (const Value& each : value->as_sequence().items) {
      if (!each.is_string()) {
        run.fail(name + "() needs strings");
        return {};
      }
      if (run.read(each.as_string().size()) && fits(each.as_string())) return Value::boolean(true);
    }
    return Value::boolean(false);
  }
  const bool found = fits(bound.text(0));
  return Value::boolean(found);
}

// find(), rfind() and count(), over the part of the text between two optional places.
Value search(Run& run, const std::string& text, const std::string& name,
             const Arguments& arguments) {
  const Bound bound(run, name, arguments, {"", " ", "  "});
  const std::string& what = bound.text(0);
  if (run.failed() || !run.read(text.size())) return {};
  const auto length = static_cast<int64_t>(count_characters_of(text));
  const auto place = [&](size_t i, int64_t otherwise) {
    if (!bound.has(i)) return otherwise;
    int64_t at = bound.integer(i, otherwise);
    if (at < 0) at = std::max<int64_t>(0, at + length);
    return at;
  };
  const int64_t begin = place(1, 0);
  const int64_t end = std::min(place(2, length), length);
  if (run.failed()) return {};
  if (begin > end) return Value::integer(name == "count" ? 0 : -1);
  const size_t offset = character_start(text, static_cast<size_t>(begin));
  const std::string_view rest = std::string_view(text).substr(offset);
  const std::string_view part =
      rest.substr(0, character_start(rest, static_cast<size_t>(end - begin)));
  if (name == "count") {
    if (what.empty()) return Value::integer(end - begin + 1);
    int64_t count = 0;
    for (size_t at = find_text(part, what); at != part.npos;
         at = find_text(part, what, at + what.size())) {
      ++count;
    }
    return Value::integer(count);
  }
  size_t found = part.npos;
  if (name == "find") {
    found = find_text(part, what);
  } else if (run.step(1 + part.size() / 16 * (1 + what.size() / 4))) {
    found = part.rfind(what);
  }
  if (found == part.npos) return Value::integer(-1);
  return Value::integer(begin + static_cast<int64_t>(count_characters_of(part.substr(0, found))));
}

Value without_end(Run& run, const std::string& text, const std::string& name,
                  const Arguments& arguments) {
  const Bound bound(run, name, arguments, {""});
  const std::string& part = bound.text(0);
  const std::string_view view = text;
  if (name == "removeprefix" && view.starts_with(part)) return run.string(text.substr(part.size()));
  if (name == "removesuffix" && view.ends_with(part)) {
    return run.string(text.substr(0, text.size() - part.size()));
  }
  return run.string(text);
}

Value stripped(Run& run, const std::string& text, const std::string& name,
               const Arguments& arguments) {
  const Bound bound(run, name, arguments, {""});
  std::optional<std::string_view> of;
  if (bound.has(0)) {
    of = bound.text(0);
    if (!run.step(1 + text.size() / 64 * (1 + of->size()))) return {};
  }
  if (run.failed()) return {};
  return run.string(std::string(strip(text, name != "rstrip", name != "lstrip", of)));
}

Value tests_of_text(Run& run, const std::string& text, const std::string& name,
                    const Arguments& arguments) {
  const Bound none(run, name, arguments, {});
  bool all = !text.empty();
  for (size_t at = 0; all && at < text.size();) {
    const char32_t c = next_character(text, &at);
    if (name == "isspace") {
      all = is_space(c);
    } else {
      const auto type = u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE);
      all = type == U_NT_DECIMAL || type == U_NT_DIGIT;
    }
  }
  return Value::boolean(all);
}

Value in_case(Run& run, const std::string& text, const std::string& name,
              const Arguments& arguments) {
  const Bound none(run, name, arguments, {});
  if (!run.take(2 * text.size())) return {};
  if (name == "upper") return run.string(to_upper(text));
  if (name == "lower") return run.string(to_lower(text));
  return run.string(name == "title" ? title_of_str(text) : capitalized(text));
}

Value of_string(Run& run, const std::string& text, const std::string& name,
                const Arguments& arguments) {
  if (!run.read(text.size())) return {};
  if (name == "split" || name == "rsplit") return split(run, text, name, arguments);
  if (name == "splitlines") {
    const Bound bound(run, name, arguments, {"keepends"});
    if (run.failed()) return {};
    return list_of(run, split_lines(text, bound.value(0) != nullptr && truth(*bound.value(0))));
  }
  if (refuses_names(run, name, arguments)) return {};
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    return stripped(run, text, name, arguments);
  }
  if (name == "startswith" || name == "endswith") return starts_or_ends(run, text, name, arguments);
  if (name == "find" || name == "rfind" || name == "count")
    return search(run, text, name, arguments);
  if (name.starts_with("remove")) return without_end(run, text, name, arguments);
  if (name == "isdigit" || name == "isspace") return tests_of_text(run, text, name, arguments);
  if (name == "replace") {
    const Bound bound(run, name, arguments, {"", " ", "  "});
    const std::string& old = bound.text(0);
    const std::string& with = bound.text(1);
    return replaced(run, text, old, with, bound.integer(2, -1));
  }
  if (name == "join") {
    const Bound bound(run, name, arguments, {""});
    if (bound.value(0) == nullptr) run.fail("join() needs what to join");
    if (run.failed()) return {};
    return joined_text(run, text, items_of(run, *bound.value(0)), true);
  }
  return in_case(run, text, name, arguments);
}

Value of_dict(Run& run, const Value& self, const std::string& name, const Arguments& arguments) {
  if (refuses_names(run, name, arguments)) return {};
  const Dict& dict = self.as_dict();
  if (name == "get") {
    const Bound bound(run, name, arguments, {"", " "});
    if (bound.value(0) == nullptr) run.fail("get() needs a key");
    if (run.failed()) return {};
    bool hashable = true;
    const Value* found = find_entry(run, dict, *bound.value(0), &hashable);
    if (!hashable) run.fail("a " + std::string(type_name(*bound.value(0))) + " cannot be a key");
    if (found != nullptr) return *found;
    return bound.value(1) == nullptr ? Value::none() : *bound.value(1);
  }
  const Bound none(run, name, arguments, {});
  return view_of(run, dict,
                 name == "items"  ? Form::kItems
                 : name == "keys" ? Form::kKeys
                                  : Form::kValues);
}

Value of_loop(Run& run, Loop& loop, const std::string& name, const Arguments& arguments) {
  if (refuses_names(run, name, arguments)) return {};
  const auto count = static_cast<int64_t>(arguments.positional.size());
  if (name == "cycle") {
    if (count == 0) run.fail("loop.cycle() needs values");
    if (run.failed()) return {};
    return arguments.positional[static_cast<size_t>(std::max<int64_t>(0, loop.index0) % count)];
  }
  run.fail_unsupported("loop." + name + "()");
  return {};
}

}  // namespace

Value replaced(Run& run, const std::string& text, const std::string& old, const std::string& with,
               int64_t count) {
  if (!run.read(text.size())) return {};
  std::string out;
  size_t at = 0;
  const auto put = [&](size_t end) {
    if (!run.take(end - at + with.size())) return false;
    out.append(text, at, end - at);
    out += with;
    at = end;
    return true;
  };
  for (size_t from = 0; count != 0 && from <= text.size(); --count) {
    const size_t found = find_text(text, old, from);
    if (found == std::string::npos || !put(found)) break;
    at = found + old.size();
    from = at;
    if (old.empty()) {  // Between all characters
      if (from == text.size()) break;
      next_character(text, &from);
    }
  }
  if (!run.take(text.size() - at)) return {};
  out.append(text, at);
  return run.failed() ? Value() : Value::string(std::move(out));
}

Value joined_text(Run& run, const std::string& separator, const std::vector<Value>& items,
                  bool strings_only) {
  std::string text;
  bool first = true;
  for (const Value& item : items) {
    if (strings_only && !item.is_string()) {
      run.fail("join() needs strings, not a " + std::string(type_name(item)));
    }
    if (!first && run.take(separator.size())) text += separator;
    first = false;
    print(run, item, &text);
    if (run.failed()) return {};
  }
  return Value::string(std::move(text));
}

Value view_of(Run& run, const Dict& dict, Form form) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries) {
    if (form == Form::kItems) {
      items.push_back(run.sequence(Form::kTuple, {key, value}));
    } else {
      items.push_back(form == Form::kKeys ? key : value);
    }
    if (!run.step()) return {};
  }
  return run.sequence(form, std::move(items));
}

Value call_method(Run& run, const Value& self, const std::string& name,
                  const Arguments& arguments) {
  if (run.failed()) return {};
  if (self.is_string()) return of_string(run, self.as_string(), name, arguments);
  if (self.is(Kind::kDict)) return of_dict(run, self, name, arguments);
  if (self.is(Kind::kLoop)) return of_loop(run, self.as_loop(), name, arguments);
  run.fail_unsupported("the method " + in_quotes(name));
  return {};
}

}  // namespace spillway::jinja
