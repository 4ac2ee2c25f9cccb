// The metadata of a GGUF file: keys with typed values, and checked access to them. Values; const
// methods from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

// A value. All integers (and elements that are true or false) are int64, all floats double.
struct GgufValue {
  std::variant<int64_t, double, bool, std::string, std::vector<int64_t>, std::vector<double>,
               std::vector<std::string>>
      data;
  uint64_t offset = 0;   // Where it starts in the file, for messages.
  bool float32 = false;  // Its doubles were float32.
};

using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

// "an integer", "a list of 3 strings".
std::string gguf_kind_of(const GgufValue& value);

// Typed access; after the first failure every read returns its default, and status() names file,
// key, byte and reason. The metadata must outlive the reader. One thread.
class GgufKeyReader {
 public:
  GgufKeyReader(const GgufMetadata& metadata, std::string where)
      : metadata_(metadata), where_(std::move(where)) {}

  bool has(std::string_view key) const { return metadata_.find(key) != metadata_.end(); }

  // Optional values: empty when absent. A list whose elements are all equal, as writers give for
  // values that may differ by layer, is one integer.
  std::optional<int64_t> find_integer(std::string_view key, int64_t least, int64_t most);
  std::optional<double> find_number(std::string_view key, double least, double most);
  std::optional<bool> find_boolean(std::string_view key);
  std::optional<std::string> find_string(std::string_view key);
  const std::vector<std::string>* find_strings(std::string_view key);
  const std::vector<int64_t>* find_integers(std::string_view key);
  const std::vector<double>* find_numbers(std::string_view key);

  // Required values.
  int64_t integer(std::string_view key, int64_t least, int64_t most);
  double number(std::string_view key, double least, double most);
  std::string string(std::string_view key);

  void fail(std::string_view key, const std::string& reason);  // Kept unless something failed.
  bool failed() const { return !status_.ok(); }
  Status status() const { return status_; }

 private:
  const GgufValue* find(std::string_view key);
  template <class T>
  const T* find_as(std::string_view key, std::string_view wanted);

  const GgufMetadata& metadata_;
  const std::string where_;
  Status status_;
};

// A float32's value by the shortest decimal text that means it: 1e-05 for 9.999999747378752e-06.
double shortest_decimal(double value);

}  // namespace spillway
