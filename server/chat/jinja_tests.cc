// The tests of the subset: what may stand behind `is`.
#include <algorithm>
#include <cmath>

#include "server/chat/jinja_compare.h"
#include "server/chat/jinja_filters.h"
#include "server/chat/jinja_operators.h"
#include "server/chat/jinja_text.h"

namespace spillway::jinja {
namespace {

using Form = Sequence::Form;

struct Comparison {
  std::string_view name;
  Op op;
};
constexpr Comparison kComparisons[] = {
    {"eq", Op::kEqual},      {"equalto", Op::kEqual},   {"==", Op::kEqual},
    {"ne", Op::kNotEqual},   {"!=", Op::kNotEqual},     {"lt", Op::kLess},
    {"lessthan", Op::kLess}, {"<", Op::kLess},          {"le", Op::kLessEqual},
    {"<=", Op::kLessEqual},  {"gt", Op::kGreater},      {"greaterthan", Op::kGreater},
    {">", Op::kGreater},     {"ge", Op::kGreaterEqual}, {">=", Op::kGreaterEqual},
    {"in", Op::kIn}};

const Comparison* find_comparison(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kComparisons), std::end(kComparisons),
                                         [&](const Comparison& each) { return each.name == name; });
  return found == std::end(kComparisons) ? nullptr : found;
}

constexpr std::string_view kPlain[] = {
    "defined", "undefined", "none",    "string", "mapping", "iterable", "sequence", "number",
    "integer", "float",     "boolean", "true",   "false",   "callable", "odd",      "even"};

// value % by == rest
bool leaves(Run& run, const Value& value, const Value& by, int64_t rest) {
  if (value.is_string()) run.fail_unsupported("formatting with %");
  const Value left = binary(run, Op::kModulo, value, by);
  return !run.failed() && equal(run, left, Value::integer(rest));
}

bool is_sequence(const Value& value) {
  if (value.is(Kind::kSequence)) return value.as_sequence().subscripts();
  return value.is_undefined() || value.is_string() || value.is(Kind::kDict);
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_string() || value.is(Kind::kSequence) ||
         value.is(Kind::kDict) || value.is(Kind::kLoop);
}

}  // namespace

bool is_test(std::string_view name) {
  return name == "divisibleby" || find_comparison(name) != nullptr ||
         std::find(std::begin(kPlain), std::end(kPlain), name) != std::end(kPlain);
}

bool tested(Run& run, const std::string& name, const Value& input, const Arguments& arguments) {
  if (!run.step()) return false;
  const bool plain = std::find(std::begin(kPlain), std::end(kPlain), name) != std::end(kPlain);
  if (!arguments.named.empty() || arguments.positional.size() != (plain ? 0 : 1)) {
    run.fail("the test " + name + " takes " + (plain ? "no argument" : "one argument"));
    return false;
  }
  if (const Comparison* comparison = find_comparison(name)) {
    return compare(run, comparison->op, input, arguments.positional[0]);
  }
  if (name == "divisibleby") return leaves(run, input, arguments.positional[0], 0);
  if (name == "odd") return leaves(run, input, Value::integer(2), 1);
  if (name == "even") return leaves(run, input, Value::integer(2), 0);
  if (name == "defined") return !input.is_undefined();
  if (name == "undefined") return input.is_undefined();
  if (name == "none") return input.is(Kind::kNone);
  if (name == "string") return input.is_string();
  if (name == "mapping") return input.is(Kind::kDict);
  if (name == "iterable") return is_iterable(input);
  if (name == "sequence") return is_sequence(input);
  if (name == "number") return input.is_number();
  if (name == "integer") return input.is(Kind::kInt);
  if (name == "float") return input.is(Kind::kFloat);
  if (name == "boolean") return input.is(Kind::kBool);
  // Undefined has a __call__, which is what callable() looks for.
  if (name == "callable")
    return input.is(Kind::kCallable) || input.is(Kind::kLoop) || input.is_undefined();
  return input.is(Kind::kBool) && input.as_bool() == (name == "true");
}

}  // namespace spillway::jinja
