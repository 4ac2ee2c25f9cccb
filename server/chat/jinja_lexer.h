// Cuts a template into tokens as Jinja2's lexer does, with trim_blocks and lstrip_blocks. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace spillway::jinja {

enum class TokenKind : uint8_t {
  kText,
  kOutputBegin,  // {{
  kOutputEnd,    // }}
  kBlockBegin,   // {%
  kBlockEnd,     // %}
  kName,
  kString,   // Unescaped
  kInteger,  // As written, without underscores
  kFloat,
  kOperator,
  kEnd,  // The last token, once
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;
};

// `source` is valid UTF-8. kInvalidArgument: "line 3: a comment is not closed".
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace spillway::jinja
