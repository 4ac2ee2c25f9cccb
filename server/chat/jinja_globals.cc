#include "server/chat/jinja_globals.h"

#include <algorithm>

#include "kernels/base/quote.h"
#include "server/chat/jinja_attributes.h"
#include "server/chat/jinja_compare.h"

namespace spillway::jinja {
namespace {

using Form = Sequence::Form;

constexpr std::string_view kNames[] = {"namespace", "dict", "range", "raise_exception",
                                       "strftime_now"};
constexpr int64_t kRangeMax = 100'000;  // As in Jinja's sandbox

// The entries of dict(other, name=value, ...): a dict or pairs, then the named arguments.
std::vector<std::pair<Value, Value>> entries_of(Run& run, const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> entries;
  if (arguments.positional.size() > 1) run.fail("dict() takes at most one dict");
  if (run.failed()) return entries;
  if (!arguments.positional.empty()) {
    const Value& first = arguments.positional[0];
    if (first.is(Kind::kDict)) {
      if (!run.take(first.as_dict().entries.size() * 96)) return entries;
      entries = first.as_dict().entries;
    } else {
      for (const Value& pair : items_of(run, first)) {
        const std::vector<Value> two = items_of(run, pair);
        if (two.size() != 2) run.fail("dict() needs pairs");
        if (run.failed()) return entries;
        entries.emplace_back(two[0], two[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) entries.emplace_back(run.string(name), value);
  return entries;
}

Value make_namespace(Run& run, const Arguments& arguments) {
  std::vector<std::pair<std::string, Value>> attributes;
  for (auto& [key, value] : entries_of(run, arguments)) {
    if (!key.is_string()) {
      run.fail_unsupported("a namespace with attributes that are no strings");
      return {};
    }
    attributes.emplace_back(key.as_string(), value);
  }
  return run.failed() ? Value() : run.name_space(std::move(attributes));
}

Value make_range(Run& run, const Arguments& arguments) {
  int64_t bounds[3] = {0, 0, 1};
  const std::vector<Value>& given = arguments.positional;
  if (!arguments.named.empty() || given.empty() || given.size() > 3) {
    run.fail("range() takes one to three integers");
  }
  for (size_t i = 0; i < given.size() && !run.failed(); ++i) {
    if (given[i].is_undefined()) run.use_undefined(given[i]);
    if (!given[i].is_integral()) run.fail("range() needs integers");
    if (!run.failed()) bounds[given.size() == 1 ? 1 : i] = given[i].as_int();
  }
  if (bounds[2] == 0) run.fail("the step of range() is zero");
  if (run.failed()) return {};
  std::vector<Value> items;
  for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
    if (static_cast<int64_t>(items.size()) == kRangeMax) {
      run.fail("range() has more than " + std::to_string(kRangeMax) + " numbers");
    }
    if (!run.step()) return {};
    items.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, bounds[2], &i)) break;
  }
  const Value range = run.sequence(Form::kRange, std::move(items));
  if (run.failed()) return {};
  range.as_sequence().label = "range(" + std::to_string(bounds[0]) + ", " +
                              std::to_string(bounds[1]) +
                              (bounds[2] == 1 ? "" : ", " + std::to_string(bounds[2])) + ")";
  return range;
}

Value time_text(Run& run, const Arguments& arguments, const std::optional<std::tm>& now) {
  const auto bound = bind_arguments(run, "strftime_now()", arguments, {"format"});
  if (bound[0] == nullptr || !bound[0]->is_string()) run.fail("strftime_now() needs a format");
  if (run.failed()) return {};
  const std::string& format = bound[0]->as_string();
  if (format.find('\0') != std::string::npos || format.size() > 256) {
    run.fail("the format of strftime_now() is longer than 256 bytes or has a null byte");
    return {};
  }
  std::tm local{};
  if (now) {
    local = *now;
  } else {
    const std::time_t clock = std::time(nullptr);
    localtime_r(&clock, &local);
  }
  char buffer[4096];
  const size_t length = std::strftime(buffer, sizeof(buffer), (format + "|").c_str(), &local);
  if (length == 0) run.fail("strftime_now() gives more than 4096 bytes");
  return run.failed() ? Value() : run.string(std::string(buffer, length - 1));
}

}  // namespace

bool is_global(std::string_view name) {
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

Value call_global(Run& run, const std::string& name, const Arguments& arguments,
                  const std::optional<std::tm>& now) {
  if (!run.step()) return {};
  if (name == "namespace") return make_namespace(run, arguments);
  if (name == "range") return make_range(run, arguments);
  if (name == "strftime_now") return time_text(run, arguments, now);
  if (name == "dict") {
    auto entries = entries_of(run, arguments);
    return run.failed() ? Value() : run.dict(std::move(entries));
  }
  const auto bound = bind_arguments(run, "raise_exception()", arguments, {"message"});
  const std::string message = bound[0] == nullptr ? "" : to_text(run, *bound[0]);
  run.fail("the template refuses this: " + in_quotes(message));
  return {};
}

}  // namespace spillway::jinja
