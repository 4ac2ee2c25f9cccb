// The `prompt` field: reads its four shapes and returns token ids. Its limit is that of chats, too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/completion.h"
#include "server/api/json_input.h"

namespace spillway {

// Reads prompt, add_special_tokens, parse_special, truncate_prompt_tokens and truncation_side. As
// at vLLM and llama-server special tokens that are written in a text are these tokens, unless
// parse_special is false: prompts are often rendered from a chat template by the client. Each
// prompt has at least one token, all in [0, vocabulary); the caller checks their length against the
// context. truncate_prompt_tokens = -1 leaves space for `max_tokens`. Errors go to `fields`; the
// result is then empty.
std::vector<std::vector<int32_t>> read_prompts(FieldReader& fields, const ApiContext& context,
                                               int64_t max_tokens);

// Bytes of the longest text that is tokenised for a completion: text of any length would take
// unbounded time, and a token is rarely over 8 bytes.
int64_t prompt_bytes_max(const ApiContext& context);
// The error for a longer one; `length` says how long it is: "has 70000 bytes".
ApiError prompt_too_long(const std::string& param, const std::string& length,
                         const ApiContext& context);

// Token ids of an array, each in [0, vocabulary); `param` names it in errors.
ApiResult<std::vector<int32_t>> read_token_ids(const nlohmann::json& array, int64_t vocabulary,
                                               const std::string& param);

}  // namespace spillway
