#include "server/api/json_input.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "server/strict_json.h"

namespace spillway {
namespace {

// One pass that allocates nothing: a small body can otherwise become a tree of hundreds of
// megabytes ("[[],[],..."), or a deep one that overflows the stack of whoever walks it.
std::optional<ApiError> check_size(std::string_view body, int64_t values_max) {
  int depth = 0;
  int64_t values = 1;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (c == '"') in_string = true;
    if (c == ',' || c == '[' || c == '{') ++values;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kJsonDepthMax) {
      return invalid_json(i, "nested deeper than " + std::to_string(kJsonDepthMax));
    }
    if (values > values_max) {
      return invalid_json(i, "more than " + std::to_string(values_max) + " values");
    }
  }
  return {};
}

ApiError explain(const JsonFault& fault) {
  switch (fault.kind) {
    case JsonFault::Kind::kDuplicateKey: {
      // Which of the two counts depends on the reader, so the client has to say.
      ApiError error = invalid_value(fault.path, "occurs twice; every key may occur once");
      error.code = "duplicate_key";
      return error;
    }
    case JsonFault::Kind::kNumberRange:
      if (fault.path.empty()) return invalid_json(fault.byte, "a number is out of range");
      return invalid_value(fault.path, "is a number too large for any field");
    case JsonFault::Kind::kSyntax:
      break;
  }
  return invalid_json(fault.byte, "syntax error");
}

std::string range_text(double least, double most) {
  const auto plain = [](double value) {
    std::string text = std::to_string(value);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
    return text;
  };
  return "must be between " + plain(least) + " and " + plain(most);
}

}  // namespace

ApiResult<nlohmann::json> parse_json_object(std::string_view text, int64_t values_max) {
  if (auto error = check_size(text, values_max)) return *std::move(error);
  auto parsed = parse_strict_json(text);
  if (const auto* fault = std::get_if<JsonFault>(&parsed)) return explain(*fault);
  auto& value = std::get<nlohmann::json>(parsed);
  if (!value.is_object()) return invalid_type("body", "a JSON object");
  return std::move(value);
}

std::optional<int64_t> whole_number(const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return {};
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return {};
  const double number = value.get<double>();
  // Beyond 2^53 a double no longer says which whole number was meant.
  if (std::trunc(number) != number || std::abs(number) > 9007199254740992.0) return {};
  return static_cast<int64_t>(number);
}

const nlohmann::json* FieldReader::find(const char* name) {
  known_.emplace(name);
  if (failed()) return nullptr;
  const auto found = object_->find(name);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> FieldReader::integer(const char* name, int64_t least, int64_t most) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return {};
  const std::string range =
      "must be between " + std::to_string(least) + " and " + std::to_string(most);
  const std::optional<int64_t> number = whole_number(*value);
  if (!number) {
    // A huge whole number is the right type and the wrong value.
    const bool huge = value->is_number() && std::abs(value->get<double>()) >= 9007199254740992.0;
    fail(huge ? invalid_value(name, range) : invalid_type(name, "an integer"));
    return {};
  }
  if (*number < least || *number > most) {
    fail(invalid_value(name, range));
    return {};
  }
  return number;
}

std::optional<double> FieldReader::number(const char* name, double least, double most) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_number()) {
    fail(invalid_type(name, "a number"));
    return {};
  }
  const auto number = value->get<double>();
  if (!(number >= least && number <= most)) {
    fail(invalid_value(name, range_text(least, most)));
    return {};
  }
  return number;
}

std::optional<bool> FieldReader::boolean(const char* name) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_boolean()) {
    fail(invalid_type(name, "true or false"));
    return {};
  }
  return value->get<bool>();
}

std::optional<std::string> FieldReader::string(const char* name) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    fail(invalid_type(name, "a string"));
    return {};
  }
  return value->get<std::string>();
}

void FieldReader::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

std::vector<std::string_view> FieldReader::unknown_names() const {
  std::vector<std::string_view> names;
  for (const auto& [name, value] : object_->get_ref<const nlohmann::json::object_t&>()) {
    if (!known_.contains(name)) names.push_back(name);
  }
  return names;
}

void FieldReader::refuse_unknown() {
  const std::vector<std::string_view> names = unknown_names();
  if (names.empty()) return;
  const auto shown = std::find_if(names.begin(), names.end(), is_safe_name);
  fail(unknown_parameter(shown == names.end() ? std::string_view() : *shown));
}

}  // namespace spillway
