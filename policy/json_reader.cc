#include "policy/json_reader.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

namespace spillway {

using nlohmann::json;

namespace {

constexpr int kDepthMax = 32;

// Sees every parse event before the value is stored; throws to stop the parser at once.
class Strictness {
 public:
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        check_depth(depth);
        keys_.emplace_back();
        break;
      case json::parse_event_t::array_start:
        check_depth(depth);
        break;
      case json::parse_event_t::object_end:
        keys_.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys_.back().insert(key).second) {
          throw std::runtime_error("the key " + in_quotes(key) + " occurs twice");
        }
        break;
      }
      default:
        break;
    }
    return true;
  }

 private:
  static void check_depth(int depth) {
    if (depth >= kDepthMax) throw std::runtime_error("nested too deeply");
  }

  std::vector<std::unordered_set<std::string>> keys_;
};

const json& empty_array() {
  static const json value = json::array();
  return value;
}

const json& empty_object() {
  static const json value = json::object();
  return value;
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr size_t kShown = 80;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '\'' && c != '\\') {
      out += c;
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out + (text.size() > kShown ? "...'" : "'");
}

Result<json> parse_json_object(std::string_view text, std::string_view what) {
  const auto refuse = [&](const std::string& reason) {
    return invalid_argument(std::string(what) + ": " + reason);
  };
  if (text.empty() || text.front() != '{') return refuse("does not start with '{'");
  // The library takes a NUL byte for the end of its input and would ignore what follows.
  if (text.find('\0') != std::string_view::npos) return refuse("contains a NUL byte");
  try {
    json parsed = json::parse(text.begin(), text.end(), Strictness());
    if (!parsed.is_object()) return refuse("is not a JSON object");
    return parsed;
  } catch (const std::exception& error) {
    return refuse("is not valid JSON (" + std::string(error.what()) + ")");
  }
}

JsonReader::JsonReader(const json& object, std::string where)
    : object_(object.is_object() ? object : empty_object()), where_(std::move(where)) {
  if (!object.is_object()) fail("is not an object");
}

void JsonReader::fail(std::string reason) {
  if (status_.ok()) status_ = invalid_argument(where_ + ": " + std::move(reason));
}

bool JsonReader::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

const json* JsonReader::find(const char* key) {
  const auto found = object_.find(key);
  if (found != object_.end()) return &*found;
  fail(std::string(key) + " is missing");
  return nullptr;
}

int64_t JsonReader::integer(const char* key, int64_t least, int64_t most) {
  const json* value = find(key);
  if (value == nullptr) return least;
  // is_number_integer() is also true of unsigned numbers, whose upper half get<int64_t> would wrap.
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= INT64_MAX);
  if (!fits) {
    fail(std::string(key) + " must be a whole number");
    return least;
  }
  const auto number = value->get<int64_t>();
  if (number >= least && number <= most) return number;
  fail(std::string(key) + " is " + std::to_string(number) + ", must be " + std::to_string(least) +
       " to " + std::to_string(most));
  return least;
}

int64_t JsonReader::integer_or(const char* key, int64_t least, int64_t most, int64_t otherwise) {
  return has(key) ? integer(key, least, most) : otherwise;
}

uint64_t JsonReader::unsigned_integer(const char* key) {
  const json* value = find(key);
  if (value == nullptr) return 0;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  fail(std::string(key) + " must be a whole number, not negative");
  return 0;
}

bool JsonReader::boolean_or(const char* key, bool otherwise) {
  if (!has(key)) return otherwise;
  const json* value = find(key);
  if (value->is_boolean()) return value->get<bool>();
  fail(std::string(key) + " must be true or false");
  return otherwise;
}

double JsonReader::number_or(const char* key, double otherwise) {
  if (!has(key)) return otherwise;
  const json* value = find(key);
  if (value->is_number()) return value->get<double>();
  fail(std::string(key) + " must be a number");
  return otherwise;
}

double JsonReader::number(const char* key, double least, double most) {
  const json* value = find(key);
  if (value == nullptr) return least;
  if (!value->is_number()) {
    fail(std::string(key) + " must be a number");
    return least;
  }
  const auto number = value->get<double>();
  if (number >= least && number <= most) return number;
  char text[128];
  std::snprintf(text, sizeof text, " is %g, must be %g to %g", number, least, most);
  fail(key + std::string(text));
  return least;
}

void JsonReader::only(std::initializer_list<std::string_view> keys) {
  for (const auto& [key, value] : object_.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      fail("unknown field " + in_quotes(key));
    }
  }
}

std::string JsonReader::string(const char* key, size_t bytes_max) {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    fail(std::string(key) + " must be a string");
    return {};
  }
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() <= bytes_max) return text;
  fail(std::string(key) + " is longer than " + std::to_string(bytes_max) + " bytes");
  return {};
}

std::string JsonReader::string_or(const char* key, size_t bytes_max, std::string otherwise) {
  return has(key) ? string(key, bytes_max) : std::move(otherwise);
}

const json& JsonReader::array(const char* key, size_t items_max) {
  const json* value = find(key);
  if (value == nullptr) return empty_array();
  if (value->is_array() && value->size() <= items_max) return *value;
  fail(std::string(key) + " must be a list of at most " + std::to_string(items_max) + " items");
  return empty_array();
}

const json& JsonReader::object(const char* key) {
  const json* value = find(key);
  if (value == nullptr) return empty_object();
  if (value->is_object()) return *value;
  fail(std::string(key) + " must be an object");
  return empty_object();
}

}  // namespace spillway
