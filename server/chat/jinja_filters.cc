#include "server/chat/jinja_filters.h"

#include <algorithm>
#include <cmath>

#include "server/chat/jinja_compare.h"
#include "server/chat/jinja_json.h"
#include "server/chat/jinja_methods.h"
#include "server/chat/jinja_operators.h"
#include "server/chat/jinja_text.h"

namespace spillway::jinja {
namespace {

using Form = Sequence::Form;

Value trim(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "the filter trim", arguments, {"chars"});
  const std::string text = to_text(run, input);
  std::optional<std::string_view> of;
  if (bound[0] != nullptr && !bound[0]->is(Kind::kNone)) {
    if (!bound[0]->is_string()) run.fail("the filter trim needs a string");
    if (run.failed()) return {};
    of = bound[0]->as_string();
    if (!run.step(1 + text.size() / 64 * (1 + of->size()))) return {};
  }
  return run.string(std::string(strip(text, true, true, of)));
}

Value length(Run& run, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "the filter length", arguments, {});
  const int64_t count = length_of(input);
  if (count < 0) run.fail("a " + std::string(type_name(input)) + " has no length");
  return Value::integer(count);
}

Value in_case(Run& run, const std::string& name, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "the filter " + name, arguments, {});
  const std::string text = to_text(run, input);
  if (!run.take(2 * text.size())) return {};
  if (name == "upper") return run.string(to_upper(text));
  if (name == "lower") return run.string(to_lower(text));
  return run.string(name == "title" ? title_of_jinja(text) : capitalized(text));
}

Value otherwise(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound =
      bind_arguments(run, "the filter default", arguments, {"default_value", "boolean"});
  const bool boolean = bound[1] != nullptr && truth(*bound[1]);
  if (!input.is_undefined() && !(boolean && !truth(input))) return input;
  return bound[0] == nullptr ? run.string("") : *bound[0];
}

Value first_or_last(Run& run, const std::string& name, const Value& input,
                    const Arguments& arguments) {
  bind_arguments(run, "the filter " + name, arguments, {});
  if (name == "last" && input.is(Kind::kSequence) && input.as_sequence().form == Form::kIterator) {
    run.fail("the filter last needs a list, not a generator");
  }
  if (name == "first" && input.is(Kind::kSequence)) {
    Sequence& sequence = input.as_sequence();
    const size_t at = sequence.form == Form::kIterator ? sequence.used : 0;
    if (at >= sequence.items.size()) return Value::undefined("there is no first item");
    if (sequence.form == Form::kIterator) ++sequence.used;
    return sequence.items[at];
  }
  const std::vector<Value> items = items_of(run, input);
  if (items.empty()) return Value::undefined("there is no " + name + " item");
  return name == "first" ? items.front() : items.back();
}

Value replace(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "the filter replace", arguments, {"old", "new", "count"});
  if (bound[0] == nullptr || bound[1] == nullptr) run.fail("the filter replace needs two strings");
  if (run.failed()) return {};
  int64_t count = -1;
  if (bound[2] != nullptr && !bound[2]->is(Kind::kNone)) {
    if (!bound[2]->is_integral()) run.fail("the filter replace needs an integer as its count");
    if (run.failed()) return {};
    count = bound[2]->as_int();
  }
  return replaced(run, to_text(run, input), to_text(run, *bound[0]), to_text(run, *bound[1]),
                  count);
}

Value reverse(Run& run, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "the filter reverse", arguments, {});
  if (input.is_string()) {
    const std::string& text = input.as_string();
    if (!run.read(text.size())) return {};
    std::string out;
    for (size_t end = text.size(); end > 0;) {
      size_t begin = end - 1;
      while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
      out.append(text, begin, end - begin);
      end = begin;
    }
    return run.string(std::move(out));
  }
  // An iterator cannot be read backwards, so that Jinja makes a list of it.
  const bool list = input.is(Kind::kSequence) && input.as_sequence().form == Form::kIterator;
  std::vector<Value> items = items_of(run, input);
  std::reverse(items.begin(), items.end());
  return list ? run.list(std::move(items)) : run.iterator(std::move(items));
}

Value as_text(Run& run, const std::string& name, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "the filter " + name, arguments, {});
  if (name == "safe" || !input.is_string()) return run.string(to_text(run, input));
  return input;
}

// int(float): empty where Python raises ValueError.
std::optional<int64_t> whole(Run& run, double value) {
  if (std::isnan(value)) return std::nullopt;
  value = std::trunc(value);
  if (value >= 9.2233720368547e18 || value <= -9.2233720368547e18) {
    run.fail("a number beyond 64 bits is not supported");
    return std::nullopt;
  }
  return static_cast<int64_t>(value);
}

Value as_int(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "the filter int", arguments, {"default", "base"});
  if (input.is_undefined()) run.use_undefined(input);
  const Value base = bound[1] == nullptr ? Value::integer(10) : *bound[1];
  if (!base.is_integral() || base.as_int() < 0 || base.as_int() > 36) {
    run.fail("the filter int needs a base up to 36");
  }
  if (run.failed()) return {};
  std::optional<int64_t> value;
  if (input.is_integral()) return Value::integer(input.as_int());
  if (input.is(Kind::kFloat)) {
    value = whole(run, input.as_real());
  } else if (input.is_string() && run.read(input.as_string().size())) {
    bool overflow = false;
    value = parse_int(input.as_string(), static_cast<int>(base.as_int()), &overflow);
    if (overflow) run.fail("a number beyond 64 bits is not supported");
    const auto real = value || overflow ? std::nullopt : parse_real(input.as_string());
    if (real && std::isfinite(*real)) value = whole(run, *real);
  }
  if (value) return Value::integer(*value);
  return bound[0] == nullptr ? Value::integer(0) : *bound[0];
}

Value as_float(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "the filter float", arguments, {"default"});
  if (input.is_undefined()) run.use_undefined(input);
  if (run.failed()) return {};
  if (input.is_number()) return Value::real(input.as_real());
  if (input.is_string() && run.read(input.as_string().size())) {
    if (const auto value = parse_real(input.as_string())) return Value::real(*value);
  }
  return bound[0] == nullptr ? Value::real(0) : *bound[0];
}

Value absolute(Run& run, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "the filter abs", arguments, {});
  if (input.is_undefined()) run.use_undefined(input);
  if (!input.is_number()) run.fail("a " + std::string(type_name(input)) + " has no absolute value");
  if (run.failed()) return {};
  if (input.is(Kind::kFloat)) return Value::real(std::fabs(input.as_real()));
  return negated(run, input, input.as_int() >= 0);
}

Value indent(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound =
      bind_arguments(run, "the filter indent", arguments, {"width", "first", "blank"});
  if (input.is_undefined()) run.use_undefined(input);
  if (!input.is_string()) run.fail("the filter indent needs a string");
  std::string space(4, ' ');
  if (bound[0] != nullptr && bound[0]->is_string()) {
    space = bound[0]->as_string();
  } else if (bound[0] != nullptr && bound[0]->is_integral()) {
    const int64_t width = std::max<int64_t>(0, bound[0]->as_int());
    if (width > 1000) run.fail("the filter indent indents by 1000 at most");
    space.assign(run.failed() ? 0 : static_cast<size_t>(width), ' ');
  } else if (bound[0] != nullptr) {
    run.fail("the filter indent needs a width");
  }
  if (run.failed()) return {};
  const bool first = bound[1] != nullptr && truth(*bound[1]);
  const bool blank = bound[2] != nullptr && truth(*bound[2]);
  const std::string text = input.as_string() + "\n";
  const std::vector<std::string_view> lines = split_lines(text, false);
  if (!run.take(text.size() + lines.size() * (space.size() + 32))) return {};
  std::string out = first ? space : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    if (i > 0 && (blank || !lines[i].empty())) out += space;
    out += lines[i];
  }
  return run.string(std::move(out));
}

Value items(Run& run, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "the filter items", arguments, {});
  if (input.is_undefined()) return run.iterator({});
  if (!input.is(Kind::kDict)) {
    run.fail("the filter items needs a dict, not a " + std::string(type_name(input)));
    return {};
  }
  const Value view = view_of(run, input.as_dict(), Form::kItems);
  return run.iterator(items_of(run, view));
}

Value as_list(Run& run, const Value& input, const Arguments& arguments) {
  bind_arguments(run, "the filter list", arguments, {});
  return run.list(items_of(run, input));
}

}  // namespace

bool is_filter(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "trim",   "length",     "count",      "upper",   "lower",   "capitalize", "title", "default",
      "d",      "first",      "last",       "replace", "reverse", "string",     "safe",  "int",
      "float",  "abs",        "indent",     "items",   "list",    "tojson",     "map",   "select",
      "reject", "selectattr", "rejectattr", "sort",    "unique",  "dictsort",   "join"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

Value filtered(Run& run, const std::string& name, const Value& input, const Arguments& arguments) {
  if (!run.step()) return {};
  if (name == "trim") return trim(run, input, arguments);
  if (name == "length" || name == "count") return length(run, input, arguments);
  if (name == "default" || name == "d") return otherwise(run, input, arguments);
  if (name == "first" || name == "last") return first_or_last(run, name, input, arguments);
  if (name == "replace") return replace(run, input, arguments);
  if (name == "reverse") return reverse(run, input, arguments);
  if (name == "string" || name == "safe") return as_text(run, name, input, arguments);
  if (name == "int") return as_int(run, input, arguments);
  if (name == "float") return as_float(run, input, arguments);
  if (name == "abs") return absolute(run, input, arguments);
  if (name == "indent") return indent(run, input, arguments);
  if (name == "items") return items(run, input, arguments);
  if (name == "list") return as_list(run, input, arguments);
  if (name == "tojson") return tojson_filter(run, input, arguments);
  if (name == "map") return map_filter(run, input, arguments);
  if (name == "sort") return sort_filter(run, input, arguments);
  if (name == "unique") return unique_filter(run, input, arguments);
  if (name == "dictsort") return dictsort_filter(run, input, arguments);
  if (name == "join") return join_filter(run, input, arguments);
  if (name == "upper" || name == "lower" || name == "title" || name == "capitalize") {
    return in_case(run, name, input, arguments);
  }
  return select_filter(run, name, input, arguments);
}

}  // namespace spillway::jinja
