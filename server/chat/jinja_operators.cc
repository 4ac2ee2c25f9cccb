#include "server/chat/jinja_operators.h"

#include <algorithm>
#include <cmath>

#include "server/chat/jinja_compare.h"
#include "server/chat/jinja_text.h"

namespace spillway::jinja {
namespace {

using Form = Sequence::Form;

constexpr const char* kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

Value refuse(Run& run, Op op, const Value& left, const Value& right) {
  run.fail(std::string(kSigns[static_cast<size_t>(op)]) + " of a " + std::string(type_name(left)) +
           " and a " + std::string(type_name(right)) + " is not possible");
  return {};
}

Value overflow(Run& run) {
  run.fail("a number beyond 64 bits is not supported");
  return {};
}

Value division_by_zero(Run& run) {
  run.fail("division by zero");
  return {};
}

Value integer_power(Run& run, int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return division_by_zero(run);
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  int64_t value = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(value, base, &value)) return overflow(run);
  }
  return Value::integer(value);
}

Value of_integers(Run& run, Op op, int64_t left, int64_t right) {
  int64_t value = 0;
  switch (op) {
    case Op::kAdd:
      return __builtin_add_overflow(left, right, &value) ? overflow(run) : Value::integer(value);
    case Op::kSubtract:
      return __builtin_sub_overflow(left, right, &value) ? overflow(run) : Value::integer(value);
    case Op::kMultiply:
      return __builtin_mul_overflow(left, right, &value) ? overflow(run) : Value::integer(value);
    case Op::kPower:
      return integer_power(run, left, right);
    default:
      break;
  }
  if (right == 0) return division_by_zero(run);
  if (op == Op::kDivide) {
    return Value::real(
        static_cast<double>(static_cast<long double>(left) / static_cast<long double>(right)));
  }
  if (left == INT64_MIN && right == -1)
    return op == Op::kModulo ? Value::integer(0) : overflow(run);
  // Python rounds down where C++ rounds towards zero.
  const int64_t rest = left % right;
  const bool down = rest != 0 && (rest < 0) != (right < 0);
  if (op == Op::kModulo) return Value::integer(down ? rest + right : rest);
  return Value::integer(left / right - (down ? 1 : 0));
}

// divmod() of Python: the remainder has the sign of the divisor.
double real_modulo(double left, double right) {
  double rest = std::fmod(left, right);
  if (rest != 0) {
    if ((right < 0) != (rest < 0)) rest += right;
  } else {
    rest = std::copysign(0.0, right);
  }
  return rest;
}

double real_floor_divide(double left, double right) {
  const double quotient = (left - real_modulo(left, right)) / right;
  if (quotient == 0) return std::copysign(0.0, left / right);
  const double down = std::floor(quotient);
  return quotient - down > 0.5 ? down + 1 : down;
}

Value of_reals(Run& run, Op op, double left, double right) {
  switch (op) {
    case Op::kAdd:
      return Value::real(left + right);
    case Op::kSubtract:
      return Value::real(left - right);
    case Op::kMultiply:
      return Value::real(left * right);
    case Op::kPower: {
      if (left == 0 && right < 0) return division_by_zero(run);
      if (left < 0 && std::isfinite(right) && right != std::floor(right)) {
        run.fail_unsupported("a complex number");
        return {};
      }
      const double value = std::pow(left, right);
      if (std::isinf(value) && std::isfinite(left) && std::isfinite(right)) return overflow(run);
      return Value::real(value);
    }
    default:
      break;
  }
  if (right == 0) return division_by_zero(run);
  if (op == Op::kDivide) return Value::real(left / right);
  return Value::real(op == Op::kModulo ? real_modulo(left, right) : real_floor_divide(left, right));
}

bool is_list_or_tuple(const Value& value) {
  return value.is(Kind::kSequence) &&
         (value.as_sequence().form == Form::kList || value.as_sequence().form == Form::kTuple);
}

Value repeated(Run& run, const Value& value, int64_t times) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(0, times));
  if (value.is_string()) {
    const std::string& text = value.as_string();
    if (text.empty() || count == 0) return run.string("");
    if (count > (uint64_t{1} << 40) / text.size() || !run.take(text.size() * count)) {
      run.fail("the template takes more memory than is allowed");
      return {};
    }
    std::string all;
    all.reserve(text.size() * count);
    for (uint64_t i = 0; i < count; ++i) all += text;
    return Value::string(std::move(all));
  }
  const Sequence& sequence = value.as_sequence();
  std::vector<Value> items;
  if (!sequence.items.empty()) {
    if (count > (uint64_t{1} << 32) / sequence.items.size() ||
        !run.take(sequence.items.size() * count * 48)) {
      run.fail("the template takes more memory than is allowed");
      return {};
    }
    for (uint64_t i = 0; i < count; ++i) {
      items.insert(items.end(), sequence.items.begin(), sequence.items.end());
    }
  }
  return run.sequence(sequence.form, std::move(items));
}

Value joined(Run& run, const Value& left, const Value& right) {
  if (left.is_string()) {
    if (!run.take(left.as_string().size() + right.as_string().size())) return {};
    return Value::string(left.as_string() + right.as_string());
  }
  if (!run.take((left.as_sequence().items.size() + right.as_sequence().items.size()) * 48))
    return {};
  std::vector<Value> items = left.as_sequence().items;
  const std::vector<Value>& more = right.as_sequence().items;
  items.insert(items.end(), more.begin(), more.end());
  return run.sequence(left.as_sequence().form, std::move(items));
}

// The start, stop and step of a slice of `length` items as Python adjusts them.
struct Bounds {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
};

bool read_bound(Run& run, const Value* value, int64_t otherwise, int64_t* out) {
  *out = otherwise;
  if (value == nullptr || value->is(Kind::kNone)) return true;
  if (value->is_undefined()) {
    run.use_undefined(*value);
    return false;
  }
  if (!value->is_integral()) {
    run.fail("a slice needs integers, not a " + std::string(type_name(*value)));
    return false;
  }
  *out = value->as_int();
  return true;
}

bool read_bounds(Run& run, const Value* start, const Value* stop, const Value* step, int64_t length,
                 Bounds* bounds) {
  if (!read_bound(run, step, 1, &bounds->step)) return false;
  if (bounds->step == 0) {
    run.fail("the step of a slice is zero");
    return false;
  }
  bounds->step = std::max(bounds->step, -INT64_MAX);
  const bool back = bounds->step < 0;
  const int64_t first = back ? length - 1 : 0;
  const int64_t last = back ? -1 : length;
  const auto adjust = [&](int64_t place) {
    if (place < 0) return std::max<int64_t>(place + length, back ? -1 : 0);
    return std::min(place, back ? length - 1 : length);
  };
  int64_t value = 0;
  if (!read_bound(run, start, 0, &value)) return false;
  const bool has_start = start != nullptr && !start->is(Kind::kNone);
  bounds->start = has_start ? adjust(value) : first;
  if (!read_bound(run, stop, 0, &value)) return false;
  const bool has_stop = stop != nullptr && !stop->is(Kind::kNone);
  bounds->stop = has_stop ? adjust(value) : last;
  return true;
}

// Calls `take` with each place of the slice.
template <class Take>
void each_place(Run& run, const Bounds& bounds, const Take& take) {
  for (int64_t i = bounds.start; bounds.step > 0 ? i < bounds.stop : i > bounds.stop;) {
    if (!run.step()) return;
    take(static_cast<size_t>(i));
    if (__builtin_add_overflow(i, bounds.step, &i)) return;
  }
}

Value sliced_text(Run& run, const std::string& text, const Value* start, const Value* stop,
                  const Value* step) {
  if (!run.read(text.size())) return {};
  Bounds bounds;
  const auto length = static_cast<int64_t>(count_characters_of(text));
  if (!read_bounds(run, start, stop, step, length, &bounds)) return {};
  if (bounds.step == 1) {
    if (bounds.start >= bounds.stop) return run.string("");
    const size_t from = character_start(text, static_cast<size_t>(bounds.start));
    const std::string_view rest = std::string_view(text).substr(from);
    const size_t bytes = character_start(rest, static_cast<size_t>(bounds.stop - bounds.start));
    return run.string(std::string(rest.substr(0, bytes)));
  }
  if (!run.take(8 * text.size())) return {};
  const std::vector<size_t> starts = character_starts(text);
  std::string part;
  each_place(run, bounds,
             [&](size_t i) { part.append(text, starts[i], starts[i + 1] - starts[i]); });
  return run.string(std::move(part));
}

}  // namespace

Value binary(Run& run, Op op, const Value& left, const Value& right) {
  if (run.failed()) return {};
  if (left.is_undefined() || right.is_undefined()) {
    run.use_undefined(left.is_undefined() ? left : right);
    return {};
  }
  if (left.is_integral() && right.is_integral()) {
    return of_integers(run, op, left.as_int(), right.as_int());
  }
  if (left.is_number() && right.is_number()) {
    return of_reals(run, op, left.as_real(), right.as_real());
  }
  if (op == Op::kAdd) {
    if (left.is_string() && right.is_string()) return joined(run, left, right);
    if (is_list_or_tuple(left) && is_list_or_tuple(right) &&
        left.as_sequence().form == right.as_sequence().form) {
      return joined(run, left, right);
    }
  }
  if (op == Op::kMultiply) {
    if ((left.is_string() || is_list_or_tuple(left)) && right.is_integral()) {
      return repeated(run, left, right.as_int());
    }
    if ((right.is_string() || is_list_or_tuple(right)) && left.is_integral()) {
      return repeated(run, right, left.as_int());
    }
  }
  if (op == Op::kModulo && left.is_string()) {
    run.fail_unsupported("formatting with %");
    return {};
  }
  return refuse(run, op, left, right);
}

bool compare(Run& run, Op op, const Value& left, const Value& right) {
  if (run.failed()) return false;
  switch (op) {
    case Op::kEqual:
      return equal(run, left, right);
    case Op::kNotEqual:
      return !equal(run, left, right);
    case Op::kLess:
      return less(run, left, right);
    case Op::kGreater:
      return less(run, right, left);
    case Op::kLessEqual:  // Not "not greater": NaN is neither.
      return less(run, left, right) || (!run.failed() && equal(run, left, right));
    case Op::kGreaterEqual:
      return less(run, right, left) || (!run.failed() && equal(run, left, right));
    case Op::kIn:
      return contains(run, left, right);
    default:
      return !contains(run, left, right);
  }
}

Value negated(Run& run, const Value& value, bool positive) {
  if (run.failed()) return {};
  if (value.is_undefined()) {
    run.use_undefined(value);
  } else if (!value.is_number()) {
    run.fail("a " + std::string(type_name(value)) + " has no sign");
  } else if (value.is(Kind::kFloat)) {
    return Value::real(positive ? value.as_real() : -value.as_real());
  } else if (positive) {
    return Value::integer(value.as_int());
  } else {
    return of_integers(run, Op::kSubtract, 0, value.as_int());
  }
  return {};
}

Value sliced(Run& run, const Value& value, const Value* start, const Value* stop,
             const Value* step) {
  if (run.failed()) return {};
  if (value.is_undefined()) {
    run.use_undefined(value);
    return {};
  }
  if (value.is_string()) return sliced_text(run, value.as_string(), start, stop, step);
  if (!value.is(Kind::kSequence) || !value.as_sequence().subscripts()) {
    run.fail("a " + std::string(type_name(value)) + " cannot be sliced");
    return {};
  }
  const Sequence& sequence = value.as_sequence();
  if (sequence.form == Form::kRange) {
    run.fail_unsupported("a slice of range()");
    return {};
  }
  Bounds bounds;
  const auto length = static_cast<int64_t>(sequence.items.size());
  if (!read_bounds(run, start, stop, step, length, &bounds)) return {};
  std::vector<Value> items;
  each_place(run, bounds, [&](size_t i) { items.push_back(sequence.items[i]); });
  return run.sequence(sequence.form, std::move(items));
}

}  // namespace spillway::jinja
