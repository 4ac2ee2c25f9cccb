// Typed access to the fields of an untrusted JSON object; keeps the first error. The one reader for
// requests, files and checkpoints. Includes nlohmann::json only by name; the .cc files that use it
// include the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

// A JSON number that is a whole number in int64 (1, 1.0, -3e2; not true, "1", 1.5, 1e40).
std::optional<int64_t> whole_number(const nlohmann::json& value);

// Error in a field, for callers that report it in a form of their own (server/api).
struct JsonFieldFault {
  enum class Kind : uint8_t {
    kMissing,  // reason: "is missing"
    kType,     // reason is what it must be: "an integer"
    kValue,    // reason: "must be between 1 and 8, not 9"
    kObject,   // Not one field's: from fail(reason)
  };
  Kind kind = Kind::kObject;
  std::string field;
  std::string reason;
};

// Typed access to one object. A null field is an absent one. After the first failure every read
// returns its default, so a caller reads all it wants and looks at status() once. The object must
// outlive the reader. One thread.
class JsonReader {
 public:
  // An `object` that is not a JSON object is a failure. `where` starts every message of status().
  explicit JsonReader(const nlohmann::json& object, std::string where = "");

  bool has(std::string_view key) const;  // Present and not null

  // Optional fields: empty when absent, and after a failure.
  const nlohmann::json* find(std::string_view key);  // Any type; null: absent
  std::optional<int64_t> find_integer(std::string_view key, int64_t least, int64_t most);
  std::optional<double> find_number(std::string_view key, double least, double most);
  std::optional<bool> find_boolean(std::string_view key);
  std::optional<std::string> find_string(std::string_view key, size_t bytes_max = SIZE_MAX);

  // Optional fields with a default value.
  int64_t integer_or(std::string_view key, int64_t least, int64_t most, int64_t otherwise);
  double number_or(std::string_view key, double otherwise);
  bool boolean_or(std::string_view key, bool otherwise);
  std::string string_or(std::string_view key, size_t bytes_max, std::string otherwise);

  // Required fields. After a failure numbers are `least`, texts and lists empty.
  int64_t integer(std::string_view key, int64_t least, int64_t most);
  uint64_t unsigned_integer(std::string_view key);  // All of uint64, written without a fraction
  double number(std::string_view key, double least, double most);
  std::string string(std::string_view key, size_t bytes_max);
  const nlohmann::json& array(std::string_view key, size_t items_max);
  const nlohmann::json& object(std::string_view key);

  // "version" must be `readable`. Another one fails with what the object is ("a plan") and how to
  // get one that this program reads.
  void version(int64_t readable, const std::string& what, const std::string& remedy);

  // Names that no call above asked for, sorted, as written: any bytes, any length (see
  // is_safe_name). They live as long as the object.
  std::vector<std::string_view> unknown_names() const;
  void refuse_unknown();                               // Fails when there is an unknown name.
  void only(std::initializer_list<std::string_view>);  // Any other name is a failure.

  void fail(std::string reason);  // About the object. Kept unless something failed before.
  bool failed() const { return fault_.has_value(); }
  const std::optional<JsonFieldFault>& fault() const { return fault_; }

  // OK, or kInvalidArgument: "<where>: <field> must be an integer".
  Status status() const;

 private:
  void fail(JsonFieldFault::Kind kind, std::string_view field, std::string reason);
  const nlohmann::json* require(std::string_view key);  // Null and a failure when it is absent.

  const nlohmann::json& object_;
  std::string where_;
  std::set<std::string, std::less<>> known_;  // Asked for
  std::optional<JsonFieldFault> fault_;
};

}  // namespace spillway
