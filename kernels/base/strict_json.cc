#include "kernels/base/strict_json.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "kernels/base/quote.h"

namespace spillway {

namespace {

using nlohmann::json;

constexpr int kNumberOverflow = 406;  // The library's number of "1e400 fits no double"

// Iterator over the text that counts bytes, since the parser's events have no positions.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, size_t* count) : at_(at), count_(count) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*count_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  size_t* count_;
};

// "syntax error while parsing value - invalid literal" of the library's message, without the text
// that it quotes, which may be anything and of any length.
std::string syntax_error(std::string_view message) {
  constexpr std::string_view kSyntaxError = "syntax error";
  const size_t start = message.find(kSyntaxError);
  if (start == std::string_view::npos) return std::string(kSyntaxError);
  message.remove_prefix(start);
  return std::string(message.substr(0, message.find("; last read")));
}

// Builds the tree from the parser's events. The open containers are in stack_; the addresses hold,
// since nothing is added to a container while one inside it is open.
class TreeBuilder : public nlohmann::json_sax<json> {
 public:
  // `bytes_read` is up to date at every event.
  TreeBuilder(const JsonLimits& limits, const size_t& bytes_read)
      : limits_(limits), bytes_read_(bytes_read) {}

  bool null() override { return add(json()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON text has none
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
    return is_new || refuse(JsonFault::Kind::kDuplicateKey, "occurs twice");
  }

  bool parse_error(size_t byte, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const bool number = error.id == kNumberOverflow;
    fault_ = {number ? JsonFault::Kind::kNumberRange : JsonFault::Kind::kSyntax, byte, path(),
              number ? "a number is too large" : syntax_error(error.what())};
    return false;
  }

  json& tree() { return tree_; }
  const JsonFault& fault() const { return fault_; }

 private:
  struct Open {
    json* container = nullptr;
    std::string key;        // In an object: the member that is being read
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

  bool refuse(JsonFault::Kind kind, std::string reason) {
    fault_ = {kind, bytes_read_, path(), std::move(reason)};
    return false;
  }

  bool count_value() {
    return ++values_ <= limits_.values ||
           refuse(JsonFault::Kind::kTooManyValues,
                  "more than " + std::to_string(limits_.values) + " values");
  }

  bool add(json&& value) {
    if (!count_value()) return false;
    place(std::move(value));
    return true;
  }

  bool open(json&& container) {
    if (!count_value()) return false;
    if (stack_.size() == kJsonLevelsMax) {
      return refuse(JsonFault::Kind::kTooDeep,
                    "nested deeper than " + std::to_string(kJsonLevelsMax) + " levels");
    }
    stack_.push_back({place(std::move(container)), {}, nullptr});
    return true;
  }

  bool close() {
    stack_.pop_back();
    return true;
  }

  std::string path() const {
    std::string text;
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

  const JsonLimits limits_;
  const size_t& bytes_read_;
  int64_t values_ = 0;
  json tree_;
  std::vector<Open> stack_;
  JsonFault fault_;
};

// "line 2, column 7" of a byte; columns count bytes.
std::string place_in(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, byte == 0 ? 0 : byte - 1);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return "line " + std::to_string(line) + ", column " + std::to_string(before.size() - start + 1);
}

}  // namespace

std::variant<json, JsonFault> parse_strict_json(std::string_view text, const JsonLimits& limits) {
  // The library takes a NUL byte for the end of its input and would ignore what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return JsonFault{JsonFault::Kind::kSyntax, nul + 1, "", "a NUL byte"};
  }
  size_t bytes_read = 0;
  TreeBuilder builder(limits, bytes_read);
  const char* const end = text.data() + text.size();
  const bool read = json::sax_parse(CountingIterator(text.data(), &bytes_read),
                                    CountingIterator(end, &bytes_read), &builder,
                                    json::input_format_t::json, true, limits.comments);
  if (!read) return builder.fault();
  return std::move(builder.tree());
}

Result<json> parse_json_object(std::string_view text, std::string_view what,
                               const JsonLimits& limits) {
  const auto refuse = [&](const std::string& reason) {
    return invalid_argument(std::string(what) + ": " + reason);
  };
  auto parsed = parse_strict_json(text, limits);
  if (const auto* fault = std::get_if<JsonFault>(&parsed)) {
    if (fault->kind == JsonFault::Kind::kDuplicateKey) {
      return refuse("the key " + in_quotes(fault->path) + " occurs twice");
    }
    if (fault->kind == JsonFault::Kind::kNumberRange && !fault->path.empty()) {
      return refuse(fault->path + " is a number too large for any field");
    }
    return refuse("is not valid JSON at " + place_in(text, fault->byte) + ": " + fault->reason);
  }
  auto& tree = std::get<json>(parsed);
  if (!tree.is_object()) return refuse("is not a JSON object");
  return std::move(tree);
}

}  // namespace spillway
