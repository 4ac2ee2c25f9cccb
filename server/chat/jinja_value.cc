#include "server/chat/jinja_value.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace spillway::jinja {

Value Value::undefined(std::string why) {
  return {Kind::kUndefined, std::make_shared<std::string>(std::move(why))};
}

Value Value::boolean(bool value) {
  Value made(Kind::kBool);
  made.integer_ = value ? 1 : 0;
  return made;
}

Value Value::integer(int64_t value) {
  Value made(Kind::kInt);
  made.integer_ = value;
  return made;
}

Value Value::real(double value) {
  Value made(Kind::kFloat);
  made.real_ = value;
  return made;
}

Value Value::string(std::string utf8) {
  return {Kind::kString, std::make_shared<std::string>(std::move(utf8))};
}

Value Value::of(std::shared_ptr<Sequence> value) {
  return {Kind::kSequence, std::move(value)};
}
Value Value::of(std::shared_ptr<Dict> value) {
  return {Kind::kDict, std::move(value)};
}
Value Value::of(std::shared_ptr<Namespace> value) {
  return {Kind::kNamespace, std::move(value)};
}
Value Value::of(std::shared_ptr<Loop> value) {
  return {Kind::kLoop, std::move(value)};
}
Value Value::of(std::shared_ptr<Callable> value) {
  return {Kind::kCallable, std::move(value)};
}

double Value::as_real() const {
  SPILLWAY_CHECK(is_number());
  return is(Kind::kFloat) ? real_ : static_cast<double>(integer_);
}

const std::string& Value::as_string() const {
  SPILLWAY_CHECK(is_string());
  return *static_cast<const std::string*>(object_.get());
}

Sequence& Value::as_sequence() const {
  SPILLWAY_CHECK(is(Kind::kSequence));
  return *static_cast<Sequence*>(object_.get());
}

const Dict& Value::as_dict() const {
  SPILLWAY_CHECK(is(Kind::kDict));
  return *static_cast<const Dict*>(object_.get());
}

Namespace& Value::as_namespace() const {
  SPILLWAY_CHECK(is(Kind::kNamespace));
  return *static_cast<Namespace*>(object_.get());
}

Loop& Value::as_loop() const {
  SPILLWAY_CHECK(is(Kind::kLoop));
  return *static_cast<Loop*>(object_.get());
}

const Callable& Value::as_callable() const {
  SPILLWAY_CHECK(is(Kind::kCallable));
  return *static_cast<const Callable*>(object_.get());
}

const std::string& Value::why_undefined() const {
  static const std::string kNothing = "the value is undefined";
  return object_ ? *static_cast<const std::string*>(object_.get()) : kNothing;
}

int Value::depth() const {
  switch (kind_) {
    case Kind::kSequence:
      return as_sequence().depth;
    case Kind::kDict:
      return as_dict().depth;
    case Kind::kLoop:
      return as_loop().depth;
    case Kind::kCallable:
      return 1 + as_callable().self.depth();
    default:
      return 0;  // A namespace, too: the rendering owns it and takes it apart at its end.
  }
}

const Value* Dict::find(std::string_view name) const {
  const auto found = names.find(name);
  return found == names.end() ? nullptr : &entries[found->second].second;
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [known, value] : attributes) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Namespace::set(const std::string& name, Value value) {
  for (auto& [known, old] : attributes) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  attributes.emplace_back(name, std::move(value));
}

bool Loop::next(Value* item) {
  if (!peek()) return false;
  *item = std::move(ahead.front());
  ahead.pop_front();
  ++index0;
  previous = std::move(current);
  current = *item;
  return true;
}

bool Loop::peek() {
  if (!ahead.empty()) return true;
  Value item;
  if (ended || !advance || !advance(&item)) {
    ended = true;
    return false;
  }
  ahead.push_back(std::move(item));
  return true;
}

int64_t Loop::count() {
  if (sized) return length;
  for (Value item; !ended && advance && advance(&item);) ahead.push_back(std::move(item));
  ended = true;
  sized = true;
  length = index0 + 1 + static_cast<int64_t>(ahead.size());
  return length;
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kSequence: {
      constexpr std::string_view kForms[] = {"list",        "tuple",      "range",    "dict_keys",
                                             "dict_values", "dict_items", "generator"};
      return kForms[static_cast<size_t>(value.as_sequence().form)];
    }
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCallable:
      return "function";
  }
  return "";
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_real() != 0;
    case Kind::kString:
      return !value.as_string().empty();
    case Kind::kSequence:
      return value.as_sequence().form == Sequence::Form::kIterator ||
             !value.as_sequence().items.empty();
    case Kind::kDict:
      return !value.as_dict().entries.empty();
    default:
      return true;
  }
}

}  // namespace spillway::jinja
