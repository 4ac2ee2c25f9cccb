#include "server/chat/jinja_compare.h"

#include <algorithm>

#include "server/chat/jinja_text.h"

namespace spillway::jinja {
namespace {

using Form = Sequence::Form;

bool equal_numbers(const Value& left, const Value& right) {
  // long double holds every int64_t and every double.
  const auto of = [](const Value& value) {
    return value.is_integral() ? static_cast<long double>(value.as_int())
                               : static_cast<long double>(value.as_real());
  };
  return of(left) == of(right);
}

bool less_numbers(const Value& left, const Value& right) {
  const auto of = [](const Value& value) {
    return value.is_integral() ? static_cast<long double>(value.as_int())
                               : static_cast<long double>(value.as_real());
  };
  return of(left) < of(right);
}

bool equal_items(Run& run, const std::vector<Value>& left, const std::vector<Value>& right) {
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!run.step() || !equal(run, left[i], right[i])) return false;
  }
  return true;
}

bool equal_dicts(Run& run, const Dict& left, const Dict& right) {
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [key, value] : left.entries) {
    bool hashable = true;
    const Value* other = find_entry(run, right, key, &hashable);
    if (other == nullptr || !run.step() || !equal(run, value, *other)) return false;
  }
  return true;
}

void print_items(Run& run, const std::vector<Value>& items, std::string* out) {
  for (size_t i = 0; i < items.size() && !run.failed(); ++i) {
    if (i > 0) *out += ", ";
    print_quoted(run, items[i], out);
  }
}

void print_sequence(Run& run, const Sequence& sequence, std::string* out) {
  switch (sequence.form) {
    case Form::kRange:
      *out += sequence.label;
      return;
    case Form::kTuple:
      *out += '(';
      print_items(run, sequence.items, out);
      *out += sequence.items.size() == 1 ? ",)" : ")";
      return;
    case Form::kIterator:
      return run.fail("an iterator cannot be printed; use the filter list or join");
    default: {
      const bool view = sequence.form != Form::kList;
      if (view) {
        *out += sequence.form == Form::kKeys     ? "dict_keys("
                : sequence.form == Form::kValues ? "dict_values("
                                                 : "dict_items(";
      }
      *out += '[';
      print_items(run, sequence.items, out);
      *out += view ? "])" : "]";
    }
  }
}

void print_dict(Run& run, const Dict& dict, std::string* out) {
  *out += '{';
  bool first = true;
  for (const auto& [key, value] : dict.entries) {
    if (run.failed()) return;
    if (!first) *out += ", ";
    first = false;
    print_quoted(run, key, out);
    *out += ": ";
    print_quoted(run, value, out);
  }
  *out += '}';
}

// What str() and repr() share: all but strings and undefined values.
void print_other(Run& run, const Value& value, std::string* out) {
  switch (value.kind()) {
    case Kind::kNone:
      *out += "None";
      return;
    case Kind::kBool:
      *out += value.as_bool() ? "True" : "False";
      return;
    case Kind::kInt:
      *out += std::to_string(value.as_int());
      return;
    case Kind::kFloat:
      *out += format_real(value.as_real());
      return;
    case Kind::kSequence:
      return print_sequence(run, value.as_sequence(), out);
    case Kind::kDict:
      return print_dict(run, value.as_dict(), out);
    default:
      return run.fail("printing a " + std::string(type_name(value)) + " is not supported");
  }
}

}  // namespace

bool equal(Run& run, const Value& left, const Value& right) {
  if (!run.step()) return false;
  if (left.is_number() && right.is_number()) return equal_numbers(left, right);
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return run.read(std::min(left.as_string().size(), right.as_string().size())) &&
             left.as_string() == right.as_string();
    case Kind::kSequence: {
      const Sequence& a = left.as_sequence();
      const Sequence& b = right.as_sequence();
      if (a.form != b.form) return false;
      if (a.subscripts()) return equal_items(run, a.items, b.items);
      if (a.form != Form::kIterator) run.fail_unsupported("comparing a dict's views");
      return &a == &b;
    }
    case Kind::kDict:
      return equal_dicts(run, left.as_dict(), right.as_dict());
    default:
      return left.identity() == right.identity();
  }
}

bool less(Run& run, const Value& left, const Value& right) {
  if (!run.step()) return false;
  if (left.is_number() && right.is_number()) return less_numbers(left, right);
  if (left.is_string() && right.is_string()) {
    // UTF-8 sorts as code points do.
    return run.read(std::min(left.as_string().size(), right.as_string().size())) &&
           left.as_string() < right.as_string();
  }
  if (left.is_undefined() || right.is_undefined()) {
    run.use_undefined(left.is_undefined() ? left : right);
    return false;
  }
  if (left.is(Kind::kSequence) && right.is(Kind::kSequence)) {
    const Sequence& a = left.as_sequence();
    const Sequence& b = right.as_sequence();
    if (a.form == b.form && (a.form == Form::kList || a.form == Form::kTuple)) {
      for (size_t i = 0; i < a.items.size() && i < b.items.size(); ++i) {
        if (!equal(run, a.items[i], b.items[i])) return less(run, a.items[i], b.items[i]);
        if (run.failed()) return false;
      }
      return a.items.size() < b.items.size();
    }
  }
  run.fail("a " + std::string(type_name(left)) + " and a " + std::string(type_name(right)) +
           " have no order");
  return false;
}

bool contains(Run& run, const Value& item, const Value& container) {
  if (container.is_string()) {
    if (!item.is_string()) {
      run.fail("'in' a string needs a string, not a " + std::string(type_name(item)));
      return false;
    }
    return run.read(container.as_string().size()) &&
           find_text(container.as_string(), item.as_string()) != std::string::npos;
  }
  if (container.is(Kind::kDict)) {
    bool hashable = true;
    const bool found = find_entry(run, container.as_dict(), item, &hashable) != nullptr;
    if (!hashable) run.fail("a " + std::string(type_name(item)) + " cannot be a key");
    return found;
  }
  if (container.is(Kind::kSequence)) {
    Sequence& sequence = container.as_sequence();
    const bool iterator = sequence.form == Form::kIterator;
    for (size_t i = iterator ? sequence.used : 0; i < sequence.items.size(); ++i) {
      if (iterator) sequence.used = i + 1;
      const Value& each = sequence.items[i];
      const bool same = each.identity() != nullptr && each.identity() == item.identity();
      if (same || equal(run, each, item)) return !run.failed();
      if (run.failed()) return false;
    }
    return false;
  }
  if (container.is_undefined()) return false;
  run.fail("'in' a " + std::string(type_name(container)) + " is not possible");
  return false;
}

bool is_hashable(Run& run, const Value& value) {
  if (value.is(Kind::kDict) || !run.step()) return false;
  if (!value.is(Kind::kSequence)) return true;
  const Sequence& sequence = value.as_sequence();
  if (sequence.form != Form::kTuple) return sequence.form != Form::kList;
  return std::all_of(sequence.items.begin(), sequence.items.end(),
                     [&](const Value& item) { return is_hashable(run, item); });
}

const Value* find_entry(Run& run, const Dict& dict, const Value& key, bool* hashable) {
  *hashable = is_hashable(run, key);
  if (!*hashable || !run.step()) return nullptr;
  if (key.is_string()) return dict.find(key.as_string());
  if (dict.names.size() == dict.entries.size()) return nullptr;
  for (const auto& [known, value] : dict.entries) {
    if (!known.is_string() && equal(run, known, key)) return &value;
    if (!run.step()) return nullptr;
  }
  return nullptr;
}

Value* find_entry(Run& run, Dict& dict, const Value& key) {
  bool hashable = true;
  const Value* found = find_entry(run, std::as_const(dict), key, &hashable);
  if (!hashable) run.fail("a " + std::string(type_name(key)) + " cannot be a key");
  return const_cast<Value*>(found);
}

void print(Run& run, const Value& value, std::string* out) {
  if (!run.step()) return;
  if (value.is_undefined()) return;
  if (!value.is_string()) return print_quoted(run, value, out);
  if (run.take(value.as_string().size())) *out += value.as_string();
}

void print_quoted(Run& run, const Value& value, std::string* out) {
  if (!run.step()) return;
  const size_t before = out->size();
  if (value.is_undefined()) {
    *out += "Undefined";
  } else if (value.is_string()) {
    if (run.read(value.as_string().size())) *out += jinja::quoted(value.as_string());
  } else {
    print_other(run, value, out);
    if (value.is(Kind::kSequence) || value.is(Kind::kDict)) return;  // Its parts have paid.
  }
  run.take(out->size() - before);
}

std::string to_text(Run& run, const Value& value) {
  std::string text;
  print(run, value, &text);
  return text;
}

std::vector<Value> items_of(Run& run, const Value& value) {
  std::vector<Value> items;
  if (run.failed() || value.is_undefined()) return items;
  if (value.is_string()) {
    const std::string& text = value.as_string();
    if (!run.take(text.size() * 100)) return items;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      next_character(text, &at);
      items.push_back(Value::string(text.substr(begin, at - begin)));
    }
  } else if (value.is(Kind::kSequence)) {
    Sequence& sequence = value.as_sequence();
    const bool iterator = sequence.form == Form::kIterator;
    const size_t begin = iterator ? std::exchange(sequence.used, sequence.items.size()) : 0;
    if (!run.take((sequence.items.size() - begin) * 48)) return items;
    items.assign(sequence.items.begin() + static_cast<std::ptrdiff_t>(begin), sequence.items.end());
  } else if (value.is(Kind::kDict)) {
    if (!run.take(value.as_dict().entries.size() * 48)) return items;
    for (const auto& entry : value.as_dict().entries) items.push_back(entry.first);
  } else {
    run.fail("a " + std::string(type_name(value)) + " cannot be iterated over");
  }
  return items;
}

int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return static_cast<int64_t>(count_characters_of(value.as_string()));
  if (value.is(Kind::kDict)) return static_cast<int64_t>(value.as_dict().entries.size());
  if (value.is(Kind::kLoop)) return value.as_loop().count();
  if (!value.is(Kind::kSequence) || value.as_sequence().form == Form::kIterator) return -1;
  return static_cast<int64_t>(value.as_sequence().items.size());
}

}  // namespace spillway::jinja
