#include "kernels/base/json_reader.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/quote.h"

namespace spillway {

using nlohmann::json;

namespace {

// Beyond 2^53 a double no longer says which whole number was meant.
constexpr double kWholeMax = 9007199254740992.0;

const json& empty_array() {
  static const json value = json::array();
  return value;
}

const json& empty_object() {
  static const json value = json::object();
  return value;
}

std::string text_of(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", number);
  return text;
}

std::string range_text(const std::string& least, const std::string& most) {
  return "must be between " + least + " and " + most;
}

}  // namespace

std::optional<int64_t> whole_number(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return {};
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return {};
  const auto number = value.get<double>();
  if (std::trunc(number) != number || std::abs(number) > kWholeMax) return {};
  return static_cast<int64_t>(number);
}

JsonReader::JsonReader(const json& object, std::string where)
    : object_(object.is_object() ? object : empty_object()), where_(std::move(where)) {
  if (!object.is_object()) fail("is not an object");
}

void JsonReader::fail(JsonFieldFault::Kind kind, std::string_view field, std::string reason) {
  if (!fault_) fault_ = {kind, std::string(field), std::move(reason)};
}

void JsonReader::fail(std::string reason) {
  fail(JsonFieldFault::Kind::kObject, "", std::move(reason));
}

Status JsonReader::status() const {
  if (!fault_) return {};
  std::string text = where_ + ": ";
  if (!fault_->field.empty()) text += fault_->field + " ";
  if (fault_->kind == JsonFieldFault::Kind::kType) text += "must be ";
  return invalid_argument(text + fault_->reason);
}

bool JsonReader::has(std::string_view key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

const json* JsonReader::find(std::string_view key) {
  known_.emplace(key);
  if (failed()) return nullptr;
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const json* JsonReader::require(std::string_view key) {
  const json* value = find(key);
  if (value == nullptr) fail(JsonFieldFault::Kind::kMissing, key, "is missing");
  return value;
}

std::optional<int64_t> JsonReader::find_integer(std::string_view key, int64_t least, int64_t most) {
  const json* value = find(key);
  if (value == nullptr) return {};
  const std::optional<int64_t> number = whole_number(*value);
  if (number && *number >= least && *number <= most) return number;
  // A huge whole number is the right type and the wrong value.
  const bool whole = number || (value->is_number() && std::abs(value->get<double>()) >= kWholeMax);
  if (whole) {
    fail(JsonFieldFault::Kind::kValue, key,
         range_text(std::to_string(least), std::to_string(most)) + ", not " +
             (number ? std::to_string(*number) : text_of(value->get<double>())));
  } else {
    fail(JsonFieldFault::Kind::kType, key, "an integer");
  }
  return {};
}

std::optional<double> JsonReader::find_number(std::string_view key, double least, double most) {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_number()) {
    fail(JsonFieldFault::Kind::kType, key, "a number");
    return {};
  }
  const auto number = value->get<double>();
  if (number >= least && number <= most) return number;
  fail(JsonFieldFault::Kind::kValue, key,
       range_text(text_of(least), text_of(most)) + ", not " + text_of(number));
  return {};
}

std::optional<bool> JsonReader::find_boolean(std::string_view key) {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (value->is_boolean()) return value->get<bool>();
  fail(JsonFieldFault::Kind::kType, key, "true or false");
  return {};
}

std::optional<std::string> JsonReader::find_string(std::string_view key, size_t bytes_max) {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    fail(JsonFieldFault::Kind::kType, key, "a string");
    return {};
  }
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() <= bytes_max) return text;
  fail(JsonFieldFault::Kind::kValue, key,
       "must have at most " + std::to_string(bytes_max) + " bytes, not " +
           std::to_string(text.size()));
  return {};
}

int64_t JsonReader::integer_or(std::string_view key, int64_t least, int64_t most,
                               int64_t otherwise) {
  return find_integer(key, least, most).value_or(otherwise);
}

double JsonReader::number_or(std::string_view key, double otherwise) {
  return find_number(key, -DBL_MAX, DBL_MAX).value_or(otherwise);
}

bool JsonReader::boolean_or(std::string_view key, bool otherwise) {
  return find_boolean(key).value_or(otherwise);
}

std::string JsonReader::string_or(std::string_view key, size_t bytes_max, std::string otherwise) {
  return find_string(key, bytes_max).value_or(std::move(otherwise));
}

int64_t JsonReader::integer(std::string_view key, int64_t least, int64_t most) {
  require(key);
  return find_integer(key, least, most).value_or(least);
}

uint64_t JsonReader::unsigned_integer(std::string_view key) {
  const json* value = require(key);
  if (value == nullptr) return 0;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  fail(JsonFieldFault::Kind::kType, key, "an integer that is not negative");
  return 0;
}

double JsonReader::number(std::string_view key, double least, double most) {
  require(key);
  return find_number(key, least, most).value_or(least);
}

std::string JsonReader::string(std::string_view key, size_t bytes_max) {
  require(key);
  return find_string(key, bytes_max).value_or("");
}

const json& JsonReader::array(std::string_view key, size_t items_max) {
  const json* value = require(key);
  if (value == nullptr) return empty_array();
  if (value->is_array() && value->size() <= items_max) return *value;
  fail(JsonFieldFault::Kind::kType, key,
       "a list of at most " + std::to_string(items_max) + " items");
  return empty_array();
}

const json& JsonReader::object(std::string_view key) {
  const json* value = require(key);
  if (value == nullptr) return empty_object();
  if (value->is_object()) return *value;
  fail(JsonFieldFault::Kind::kType, key, "an object");
  return empty_object();
}

void JsonReader::version(int64_t readable, const std::string& what, const std::string& remedy) {
  const int64_t found = integer("version", 0, INT64_MAX);
  if (found == readable) return;
  fail("is version " + std::to_string(found) + " of " + what + ", and this program reads version " +
       std::to_string(readable) + "; " + remedy);
}

std::vector<std::string_view> JsonReader::unknown_names() const {
  std::vector<std::string_view> names;
  for (const auto& [name, value] : object_.get_ref<const json::object_t&>()) {
    if (!known_.contains(name)) names.push_back(name);
  }
  return names;
}

void JsonReader::refuse_unknown() {
  const std::vector<std::string_view> names = unknown_names();
  if (!names.empty()) fail("unknown field " + in_quotes(names.front()));
}

void JsonReader::only(std::initializer_list<std::string_view> keys) {
  for (const auto& [key, value] : object_.get_ref<const json::object_t&>()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      fail("unknown field " + in_quotes(key));
    }
  }
}

}  // namespace spillway
