#include "server/chat/jinja_run.h"

#include <algorithm>

#include "kernels/base/quote.h"
#include "server/chat/jinja_compare.h"

namespace spillway::jinja {
namespace {

constexpr int kRunLevelsMax = 400;   // Of nested expressions, statements and macro calls together
constexpr size_t kValueBytes = 48;   // What a value in a list takes, about
constexpr size_t kEntryBytes = 160;  // An entry of a dict
constexpr size_t kObjectBytes = 64;

}  // namespace

Run::~Run() {
  for (const auto& each : namespaces_) each->attributes.clear();
}

bool Run::step(uint64_t count) {
  if (failed_) return false;
  if (count > steps_) {
    fail("the template takes more steps than are allowed");
    return false;
  }
  steps_ -= count;
  return true;
}

bool Run::take(size_t bytes) {
  if (failed_) return false;
  if (bytes > bytes_) {
    fail("the template takes more memory than is allowed");
    return false;
  }
  bytes_ -= bytes;
  return read(bytes);
}

void Run::fail(std::string message) {
  if (failed_) return;
  failed_ = true;
  message_ = std::move(message);
  failed_line_ = line_;
}

void Run::use_undefined(const Value& undefined) {
  fail(undefined.why_undefined());
}

Status Run::status() const {
  if (!failed_) return {};
  return invalid_argument("line " + std::to_string(failed_line_) + ": " + message_);
}

bool Run::enter() {
  if (++level_ > kRunLevelsMax) fail("expressions, statements and macros nest too deeply");
  return step();
}

Value Run::string(std::string text) {
  if (!take(kObjectBytes + text.size())) return {};
  return Value::string(std::move(text));
}

Value Run::sequence(Sequence::Form form, std::vector<Value> items) {
  if (!take(kObjectBytes + items.size() * kValueBytes)) return {};
  auto made = std::make_shared<Sequence>();
  made->form = form;
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  made->depth = depth + 1;
  made->items = std::move(items);
  if (made->depth > kValueDepthMax) fail("lists and dicts nest too deeply");
  return failed_ ? Value() : Value::of(std::move(made));
}

Value Run::dict(std::vector<std::pair<Value, Value>> entries) {
  if (!take(kObjectBytes + entries.size() * kEntryBytes)) return {};
  auto made = std::make_shared<Dict>();
  made->entries.reserve(entries.size());  // So that views of its keys stay where they are
  for (auto& [key, value] : entries) {
    made->depth = std::max({made->depth, key.depth() + 1, value.depth() + 1});
    if (Value* old = find_entry(*this, *made, key)) {
      *old = std::move(value);
      continue;
    }
    if (failed_) return {};
    made->entries.emplace_back(std::move(key), std::move(value));
    const Value& kept = made->entries.back().first;
    if (kept.is_string()) made->names.emplace(kept.as_string(), made->entries.size() - 1);
  }
  if (made->depth > kValueDepthMax) fail("lists and dicts nest too deeply");
  return failed_ ? Value() : Value::of(std::move(made));
}

Value Run::name_space(std::vector<std::pair<std::string, Value>> attributes) {
  if (!take(kObjectBytes + attributes.size() * kEntryBytes)) return {};
  auto made = std::make_shared<Namespace>();
  for (auto& [name, value] : attributes) made->set(name, std::move(value));
  namespaces_.push_back(made);
  return Value::of(std::move(made));
}

std::vector<const Value*> bind_arguments(Run& run, const std::string& what,
                                         const Arguments& arguments,
                                         std::initializer_list<std::string_view> names) {
  std::vector<const Value*> bound(names.size(), nullptr);
  if (arguments.positional.size() > names.size()) {
    run.fail(what + " takes at most " + std::to_string(names.size()) + " arguments");
    return bound;
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto* const found = std::find(names.begin(), names.end(), std::string_view(name));
    const auto index = static_cast<size_t>(found - names.begin());
    if (found == names.end()) {
      run.fail(what + " takes no argument " + in_quotes(name));
    } else if (bound[index] != nullptr) {
      run.fail(what + " is given " + in_quotes(name) + " twice");
    } else {
      bound[index] = &value;
    }
  }
  return bound;
}

}  // namespace spillway::jinja
