// The filters over the items of a list: map, select and reject, sort, unique, join.
#include <algorithm>

#include "kernels/base/quote.h"
#include "server/chat/jinja_attributes.h"
#include "server/chat/jinja_compare.h"
#include "server/chat/jinja_filters.h"
#include "server/chat/jinja_methods.h"
#include "server/chat/jinja_text.h"

namespace spillway::jinja {
namespace {

using Form = Sequence::Form;

// "address.0.city" as steps of a subscript; an absent attribute has none.
std::vector<Value> path_of(Run& run, const Value* attribute) {
  std::vector<Value> path;
  if (attribute == nullptr || attribute->is(Kind::kNone)) return path;
  if (!attribute->is_string()) return {*attribute};
  const std::string& text = attribute->as_string();
  if (!run.read(16 * text.size())) return path;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('.', at), text.size());
    const std::string part = text.substr(at, end - at);
    const bool digits = !part.empty() && part.size() < 18 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    bool overflow = false;
    path.push_back(digits ? Value::integer(*parse_int(part, 10, &overflow)) : run.string(part));
    at = end + 1;
  }
  return path;
}

// `otherwise`: the value instead of an undefined one; may be null.
Value value_at(Run& run, Value value, const std::vector<Value>& path,
               const Value* otherwise = nullptr) {
  for (const Value& step : path) {
    value = item(run, value, step);
    if (otherwise != nullptr && value.is_undefined()) value = *otherwise;
  }
  return value;
}

Value without_case(Run& run, const Value& value) {
  if (!value.is_string() || !run.take(value.as_string().size())) return value;
  return run.string(to_lower(value.as_string()));
}

struct Keyed {
  Value key;
  Value item;
};

Value sorted(Run& run, std::vector<Keyed> keyed, bool reverse) {
  // Python's reverse sort keeps the order of equal items, too.
  const auto before = [&](const Keyed& a, const Keyed& b) {
    return reverse ? less(run, b.key, a.key) : less(run, a.key, b.key);
  };
  std::stable_sort(keyed.begin(), keyed.end(), before);
  std::vector<Value> items;
  for (Keyed& each : keyed) items.push_back(std::move(each.item));
  return run.list(std::move(items));
}

bool flag(const Value* value) {
  return value != nullptr && truth(*value);
}

}  // namespace

Value map_filter(Run& run, const Value& input, const Arguments& arguments) {
  std::vector<Value> results;
  const std::vector<Value> inputs = truth(input) ? items_of(run, input) : std::vector<Value>();
  if (arguments.positional.empty()) {
    const auto bound = bind_arguments(run, "the filter map", arguments, {"attribute", "default"});
    if (bound[0] == nullptr) run.fail("the filter map needs an attribute or a filter");
    const std::vector<Value> path = path_of(run, bound[0]);
    const Value* other = bound[1] != nullptr && !bound[1]->is(Kind::kNone) ? bound[1] : nullptr;
    for (const Value& each : inputs) {
      if (run.failed()) return {};
      results.push_back(value_at(run, each, path, other));
    }
    return run.iterator(std::move(results));
  }
  const Value& name = arguments.positional.front();
  if (!name.is_string() || !is_filter(name.as_string())) {
    run.fail_unsupported("the filter " +
                         (name.is_string() ? in_quotes(name.as_string()) : "of map"));
    return {};
  }
  Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  // Filters of filters of filters would nest without a limit.
  if (!run.enter()) {
    run.leave();
    return {};
  }
  for (const Value& each : inputs) {
    if (run.failed()) break;
    results.push_back(filtered(run, name.as_string(), each, rest));
  }
  run.leave();
  return run.iterator(std::move(results));
}

Value select_filter(Run& run, const std::string& name, const Value& input,
                    const Arguments& arguments) {
  const bool by_attribute = name.ends_with("attr");
  const bool wanted = name.starts_with("select");
  const size_t first = by_attribute ? 1 : 0;
  const std::vector<Value>& given = arguments.positional;
  if (given.size() < first) run.fail("the filter " + name + " needs an attribute");
  if (run.failed()) return {};
  const std::vector<Value> path = by_attribute ? path_of(run, &given[0]) : std::vector<Value>();
  const bool has_test = given.size() > first;
  if (has_test && (!given[first].is_string() || !is_test(given[first].as_string()))) {
    run.fail_unsupported("the test " + (given[first].is_string()
                                            ? in_quotes(given[first].as_string())
                                            : "of " + name));
    return {};
  }
  Arguments rest;
  if (has_test) {
    rest.positional.assign(given.begin() + static_cast<std::ptrdiff_t>(first) + 1, given.end());
    rest.named = arguments.named;
  }
  std::vector<Value> kept;
  const std::vector<Value> inputs = truth(input) ? items_of(run, input) : std::vector<Value>();
  for (const Value& each : inputs) {
    const Value value = value_at(run, each, path);
    if (run.failed()) return {};
    const bool passes =
        has_test ? tested(run, given[first].as_string(), value, rest) : truth(value);
    if (passes == wanted) kept.push_back(each);
  }
  return run.iterator(std::move(kept));
}

Value sort_filter(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound =
      bind_arguments(run, "the filter sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::vector<Value>> paths;
  if (bound[2] != nullptr && bound[2]->is_string() && run.read(bound[2]->as_string().size())) {
    const std::string& text = bound[2]->as_string();
    for (size_t at = 0; at <= text.size();) {
      const size_t end = std::min(text.find(',', at), text.size());
      const Value part = run.string(text.substr(at, end - at));
      paths.push_back(path_of(run, &part));
      at = end + 1;
    }
  } else {
    paths.push_back(path_of(run, bound[2]));
  }
  std::vector<Keyed> keyed;
  for (Value& each : items_of(run, input)) {
    std::vector<Value> keys;
    for (const auto& path : paths) {
      const Value key = value_at(run, each, path);
      keys.push_back(flag(bound[1]) ? key : without_case(run, key));
    }
    if (run.failed()) return {};
    keyed.push_back({run.list(std::move(keys)), std::move(each)});
  }
  return run.failed() ? Value() : sorted(run, std::move(keyed), flag(bound[0]));
}

Value dictsort_filter(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound =
      bind_arguments(run, "the filter dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (input.is_undefined()) run.use_undefined(input);
  if (!input.is(Kind::kDict)) run.fail("the filter dictsort needs a dict");
  const bool by_value =
      bound[1] != nullptr && bound[1]->is_string() && bound[1]->as_string() == "value";
  if (bound[1] != nullptr && !by_value &&
      !(bound[1]->is_string() && bound[1]->as_string() == "key")) {
    run.fail("the filter dictsort sorts by key or by value");
  }
  if (run.failed()) return {};
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : input.as_dict().entries) {
    const Value& by = by_value ? value : key;
    keyed.push_back(
        {flag(bound[0]) ? by : without_case(run, by), run.sequence(Form::kTuple, {key, value})});
    if (run.failed()) return {};
  }
  return sorted(run, std::move(keyed), flag(bound[2]));
}

Value unique_filter(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound =
      bind_arguments(run, "the filter unique", arguments, {"case_sensitive", "attribute"});
  const std::vector<Value> path = path_of(run, bound[1]);
  std::vector<Value> seen;
  std::vector<Value> kept;
  for (Value& each : items_of(run, input)) {
    Value key = value_at(run, each, path);
    if (!flag(bound[0])) key = without_case(run, key);
    if (!is_hashable(run, key)) {
      run.fail("the filter unique cannot compare a " + std::string(type_name(key)));
    }
    const bool known = std::any_of(seen.begin(), seen.end(),
                                   [&](const Value& other) { return equal(run, key, other); });
    if (run.failed()) return {};
    if (known) continue;
    seen.push_back(std::move(key));
    kept.push_back(std::move(each));
  }
  return run.iterator(std::move(kept));
}

Value join_filter(Run& run, const Value& input, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "the filter join", arguments, {"d", "attribute"});
  std::vector<Value> items = items_of(run, input);
  if (bound[1] != nullptr && !bound[1]->is(Kind::kNone)) {
    const std::vector<Value> path = path_of(run, bound[1]);
    for (Value& each : items) each = value_at(run, each, path);
  }
  if (run.failed()) return {};
  return joined_text(run, bound[0] == nullptr ? "" : to_text(run, *bound[0]), items, false);
}

}  // namespace spillway::jinja
