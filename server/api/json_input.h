// Strict reading of a JSON body: bounded parsing, and typed access to an object's fields that
// remembers the first error. Values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/error.h"

namespace spillway {

constexpr int kJsonDepthMax = 32;

// Parses a whole text, which must be an object. Refused before anything is built: deeper than
// kJsonDepthMax, more than `values_max` values. Errors: invalid_json with the byte's offset,
// duplicate_key with the key's name, invalid_type when it is no object.
ApiResult<nlohmann::json> parse_json_object(std::string_view text, int64_t values_max);

// A JSON number that is a whole number in int64 (1, 1.0; not true, "1", 1.5, 1e40).
std::optional<int64_t> whole_number(const nlohmann::json& value);

// Reads fields by name; null acts as absent. After the first error every read returns empty, so a
// reader function checks failed() once, at its end.
class FieldReader {
 public:
  explicit FieldReader(const nlohmann::json& object) : object_(&object) {}

  const nlohmann::json* find(const char* name);  // Null: absent or JSON null
  std::optional<int64_t> integer(const char* name, int64_t least, int64_t most);
  std::optional<double> number(const char* name, double least, double most);
  std::optional<bool> boolean(const char* name);
  std::optional<std::string> string(const char* name);

  bool flag(const char* name, bool otherwise) { return boolean(name).value_or(otherwise); }

  // Keeps the first error only.
  void fail(ApiError error);
  bool failed() const { return error_.has_value(); }
  // REQUIRES: failed().
  ApiError error() const { return *error_; }

  // Names in the object that nobody asked for, sorted, as they were written: any bytes, any length
  // (see is_safe_name). They live as long as the object.
  std::vector<std::string_view> unknown_names() const;
  // Fails when there is one.
  void refuse_unknown();

 private:
  const nlohmann::json* object_;
  std::set<std::string, std::less<>> known_;
  std::optional<ApiError> error_;
};

}  // namespace spillway
