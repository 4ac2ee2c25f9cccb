// Parser of untrusted JSON into a tree: bounded in size, with unique names in every object (readers
// disagree on which duplicate counts), and errors that name the place. The one parser for requests,
// batch lines, configuration and plan files, profiles, checkpoints and tokenizers.
// (kernels/base/json_reader.h reads the fields.) Values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>

#include "kernels/base/status.h"

namespace spillway {

constexpr int kJsonLevelsMax = 32;

struct JsonLimits {
  // Objects, lists, strings, numbers and literals together. A tree takes about 16 bytes a value and
  // more, so that a small text can otherwise become hundreds of megabytes ("[[],[],...").
  int64_t values = INT64_MAX;
  bool comments = false;  // // and /* */ are skipped.
};

struct JsonFault {
  enum class Kind : uint8_t { kSyntax, kDuplicateKey, kNumberRange, kTooDeep, kTooManyValues };
  Kind kind = Kind::kSyntax;
  size_t byte = 0;     // About where reading stopped
  std::string path;    // Path of the value or key: "logit_bias.5", "prompt[3]"; empty: the whole
  std::string reason;  // "syntax error while parsing value - invalid literal"; not the text itself
};

// Parses the whole text. Deeper than kJsonLevelsMax and more than limits.values are refused before
// anything more is built. Names that are not safe (is_safe_name) stand as '?' in a fault's path.
std::variant<nlohmann::json, JsonFault> parse_strict_json(std::string_view text,
                                                          const JsonLimits& limits = {});

// Parses a whole text that must be one object. `what` names the text in errors.
// kInvalidArgument: "<what>: is not valid JSON at line 2, column 7: syntax error while ...".
Result<nlohmann::json> parse_json_object(std::string_view text, std::string_view what,
                                         const JsonLimits& limits = {});

}  // namespace spillway
