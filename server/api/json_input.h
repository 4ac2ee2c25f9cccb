// A request's JSON with the API's errors: parsing (kernels/base/strict_json.h) and typed fields
// (kernels/base/json_reader.h). Values, any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/json_reader.h"
#include "server/http/error.h"

namespace spillway {

// Parses a whole body, which must be an object of at most `values_max` values. Errors: invalid_json
// with the byte's offset, duplicate_key with the key's name, invalid_type when it is not an object.
ApiResult<nlohmann::json> parse_body(std::string_view text, int64_t values_max);

// Whether a field asks for nothing, as clients send it for options that they do not set: null,
// false, "" or an empty list. An empty object may ask for something, as the schema that any JSON
// meets does; only one of further arguments (chat_template_kwargs) says nothing.
bool asks_for_nothing(std::string_view name, const nlohmann::json& value);

// Reads fields by name; null counts as absent. After the first error every read returns empty, so a
// reader function checks failed() once, at its end.
class FieldReader {
 public:
  explicit FieldReader(const nlohmann::json& object) : fields_(object) {}

  const nlohmann::json* find(const char* name) { return fields_.find(name); }
  std::optional<int64_t> integer(const char* name, int64_t least, int64_t most) {
    return fields_.find_integer(name, least, most);
  }
  std::optional<double> number(const char* name, double least, double most) {
    return fields_.find_number(name, least, most);
  }
  std::optional<bool> boolean(const char* name) { return fields_.find_boolean(name); }
  std::optional<std::string> string(const char* name) { return fields_.find_string(name); }
  bool flag(const char* name, bool otherwise) { return fields_.boolean_or(name, otherwise); }

  // Keeps the first error only.
  void fail(ApiError error);
  bool failed() const { return fields_.failed(); }
  // REQUIRES: failed().
  ApiError error() const;

  // Names in the object that were never read (JsonReader::unknown_names).
  std::vector<std::string_view> unknown_names() const { return fields_.unknown_names(); }
  // Fails when there is an unknown name.
  void refuse_unknown();

 private:
  JsonReader fields_;
  std::optional<ApiError> error_;  // Set where the error is not one of fields_' own
};

}  // namespace spillway
