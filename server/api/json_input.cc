#include "server/api/json_input.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/quote.h"
#include "kernels/base/strict_json.h"

namespace spillway {
namespace {

ApiError explain(const JsonFault& fault) {
  if (fault.kind == JsonFault::Kind::kDuplicateKey) {
    // Readers differ in which of the two counts, so the client has to resolve it.
    ApiError error = invalid_value(fault.path, "occurs twice; every key may occur once");
    error.code = "duplicate_key";
    return error;
  }
  if (fault.kind == JsonFault::Kind::kNumberRange && !fault.path.empty()) {
    return invalid_value(fault.path, "is a number too large for any field");
  }
  return invalid_json(fault.byte, fault.reason);
}

}  // namespace

ApiResult<nlohmann::json> parse_body(std::string_view text, int64_t values_max) {
  auto parsed = parse_strict_json(text, {.values = values_max});
  if (const auto* fault = std::get_if<JsonFault>(&parsed)) return explain(*fault);
  auto& value = std::get<nlohmann::json>(parsed);
  if (!value.is_object()) return invalid_type("body", "a JSON object");
  return std::move(value);
}

bool asks_for_nothing(std::string_view name, const nlohmann::json& value) {
  if (value.is_object()) return value.empty() && name.ends_with("_kwargs");
  return value.is_null() || value == false || value == "" || (value.is_array() && value.empty());
}

void FieldReader::fail(ApiError error) {
  if (failed()) return;
  error_ = std::move(error);
  fields_.fail("");  // Ends the reading.
}

ApiError FieldReader::error() const {
  SPILLWAY_CHECK(failed());
  if (error_) return *error_;
  const JsonFieldFault& fault = *fields_.fault();
  if (fault.kind == JsonFieldFault::Kind::kMissing) return missing_parameter(fault.field);
  if (fault.kind == JsonFieldFault::Kind::kType) return invalid_type(fault.field, fault.reason);
  return invalid_value(fault.field, fault.reason);
}

void FieldReader::refuse_unknown() {
  const std::vector<std::string_view> names = unknown_names();
  if (names.empty()) return;
  const auto shown = std::find_if(names.begin(), names.end(), is_safe_name);
  fail(unknown_parameter(shown == names.end() ? std::string_view() : *shown));
}

}  // namespace spillway
