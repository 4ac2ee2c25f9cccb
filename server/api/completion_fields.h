// What the bodies of /v1/completions and /v1/chat/completions share: all fields but those that say
// what to go on with.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "server/api/completion.h"
#include "server/api/json_input.h"

namespace spillway {

struct CompletionFields {
  // Reads what to go on with, as token ids, once all else is right: it may take long. A prompt has
  // at least one token, all in [0, vocabulary). Errors go to the reader; the result is then empty.
  std::function<std::vector<std::vector<int32_t>>(FieldReader& fields, int64_t max_tokens)> prompts;
  const char* source = "prompt";  // The field that says what to go on with
  int32_t tokens_default = 16;    // max_tokens of a body that does not name it, if that many fit
};

// `body`: an object. Errors as parse_completion().
ApiResult<CompletionCall> parse_completion_fields(const nlohmann::json& body,
                                                  const ApiContext& context,
                                                  const CompletionFields& own);

}  // namespace spillway
