// JSON that outsiders wrote, as a tree: names are unique in every object (readers disagree on which
// of two counts), and a refusal says where. No bound on size or depth: callers check those first.
// Values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>

namespace spillway {

struct JsonFault {
  enum class Kind : uint8_t { kSyntax, kDuplicateKey, kNumberRange };
  Kind kind = Kind::kSyntax;
  size_t byte = 0;   // About where reading stopped; 0 for kDuplicateKey
  std::string path;  // Of the value or key: "logit_bias.5", "prompt[3]"; empty: the whole
};

// Letters, digits, '_', '-' and '.', at most 64: may be repeated in a message or a header.
bool is_safe_name(std::string_view name);

// Parses the whole text. `comments`: // and /* */ are skipped. Names that are not safe stand as '?'
// in a fault's path.
std::variant<nlohmann::json, JsonFault> parse_strict_json(std::string_view text,
                                                          bool comments = false);

}  // namespace spillway
