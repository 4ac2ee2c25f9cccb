#include "server/strict_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace spillway {

namespace {

using nlohmann::json;

constexpr size_t kPathLevelsMax = 32;
constexpr int kNumberOverflow = 406;  // The library's number of "1e400 fits no double"

// Builds the tree from the parser's events. The open containers are in stack_; the addresses hold,
// since nothing is added to a container while one inside it is open.
class TreeBuilder : public nlohmann::json_sax<json> {
 public:
  bool null() override { return add(json()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // No such thing in text
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Open& object = stack_.back();
    const auto [place, is_new] =
        object.container->get_ptr<json::object_t*>()->try_emplace(name, nullptr);
    object.key = std::move(name);
    object.value = &place->second;
    if (!is_new) fault_ = {JsonFault::Kind::kDuplicateKey, 0, path()};
    return is_new;
  }

  bool parse_error(size_t byte, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const auto kind =
        error.id == kNumberOverflow ? JsonFault::Kind::kNumberRange : JsonFault::Kind::kSyntax;
    fault_ = {kind, byte, path()};
    return false;
  }

  json& tree() { return tree_; }
  const JsonFault& fault() const { return fault_; }

 private:
  struct Open {
    json* container = nullptr;
    std::string key;        // Of an object: the member that is being read
    json* value = nullptr;  // And its place
  };

  json* place(json&& value) {
    if (stack_.empty()) return &(tree_ = std::move(value));
    Open& open = stack_.back();
    if (open.container->is_array()) {
      auto* items = open.container->get_ptr<json::array_t*>();
      return &items->emplace_back(std::move(value));
    }
    return &(*open.value = std::move(value));
  }

  bool add(json&& value) {
    place(std::move(value));
    return true;
  }

  bool open(json&& container) {
    stack_.push_back({place(std::move(container)), {}, nullptr});
    return true;
  }

  bool close() {
    stack_.pop_back();
    return true;
  }

  std::string path() const {
    std::string text;
    if (stack_.size() > kPathLevelsMax) return text;
    for (const Open& open : stack_) {
      if (open.container->is_array()) {
        // The innermost one is not yet in its array; those around it are.
        const size_t index = open.container->size() - (&open == &stack_.back() ? 0 : 1);
        text += "[" + std::to_string(index) + "]";
      } else if (!open.key.empty() || open.value != nullptr) {
        text += (text.empty() ? "" : ".") + (is_safe_name(open.key) ? open.key : "?");
      }
    }
    return text;
  }

  json tree_;
  std::vector<Open> stack_;
  JsonFault fault_;
};

}  // namespace

bool is_safe_name(std::string_view name) {
  const auto safe = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), safe);
}

std::variant<json, JsonFault> parse_strict_json(std::string_view text, bool comments) {
  // The library takes a NUL byte for the end of its input and would ignore what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return JsonFault{JsonFault::Kind::kSyntax, nul, ""};
  }
  TreeBuilder builder;
  const bool read = json::sax_parse(text.begin(), text.end(), &builder, json::input_format_t::json,
                                    true, comments);
  if (!read) return builder.fault();
  return std::move(builder.tree());
}

}  // namespace spillway
