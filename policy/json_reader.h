// Reading JSON that outsiders wrote: a strict parser, and typed access that remembers what failed
// first. Includes nlohmann::json only by name; the .cc files that use it include the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace spillway {

// Parses one JSON object. Refuses duplicate keys (readers disagree on which one counts), more than
// 32 levels, anything before the '{' and anything but white space after the '}'. `what` names the
// text in errors.
Result<nlohmann::json> parse_json_object(std::string_view text, std::string_view what);

// `text` in quotes for an error message: at most 80 bytes of it, control and non-ASCII bytes
// escaped, so that a file cannot paint on the terminal.
std::string in_quotes(std::string_view text);

// Typed access to one object. The first failure is kept and every later read returns its default,
// so a caller reads all it wants and looks at status() once. The object must outlive the reader.
// One thread.
class JsonReader {
 public:
  // `object` that is no object is a failure. `where` starts every message.
  JsonReader(const nlohmann::json& object, std::string where);

  bool has(const char* key) const;  // Present and not null.

  // A whole number in [least, most], written without fraction or exponent.
  int64_t integer(const char* key, int64_t least, int64_t most);
  int64_t integer_or(const char* key, int64_t least, int64_t most, int64_t otherwise);
  uint64_t unsigned_integer(const char* key);
  bool boolean_or(const char* key, bool otherwise);
  double number_or(const char* key, double otherwise);
  double number(const char* key, double least, double most);  // In [least, most]
  std::string string(const char* key, size_t bytes_max);
  std::string string_or(const char* key, size_t bytes_max, std::string otherwise);
  const nlohmann::json& array(const char* key, size_t items_max);  // Empty after a failure.
  const nlohmann::json& object(const char* key);

  void only(std::initializer_list<std::string_view> keys);  // Any other key is a failure.

  void fail(std::string reason);  // Keeps `reason` unless something failed before.
  const Status& status() const { return status_; }

 private:
  const nlohmann::json* find(const char* key);  // Null, and a failure, when it is missing.

  const nlohmann::json& object_;
  std::string where_;
  Status status_;
};

}  // namespace spillway
