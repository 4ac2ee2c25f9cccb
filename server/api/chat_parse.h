// One /v1/chat/completions body after validation: like a /v1/completions body (completion.h), with
// messages in place of a prompt, which the model's chat template makes a prompt of.
//
// Pure but for the clock that a template may ask for; any thread. It tokenises, as
// parse_completion().
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "server/api/completion.h"
#include "server/api/json_input.h"

namespace spillway {

constexpr size_t kChatMessagesMax = 4096;
// New tokens of a request that names no limit, if that many fit. OpenAI's default, all that fits,
// would reserve the whole context's memory for every answer.
constexpr int32_t kChatTokensDefault = 1024;

// What a chat's prompt is for: an answer, so that it must fit the model, or its tokens alone
// (/tokenize), of a text of at most ApiLimits::tokenize_bytes_max.
enum class ChatPromptUse : uint8_t { kAnswer, kTokens };

// Reads `messages` and add_generation_prompt: the token ids that the template makes of them, at
// least one, all in [0, vocabulary). Errors go to `fields`; the result is then empty.
std::vector<int32_t> read_chat_prompt(FieldReader& fields, const ApiContext& context,
                                      ChatPromptUse use);

// Validates a body strictly, as parse_completion() does. Messages are of system (or developer),
// user and assistant, and of text; text parts are joined with line breaks. What other servers know
// and this one does not (tools, images ...) is refused by its name.
ApiResult<CompletionCall> parse_chat(std::string_view json_body, const ApiContext& context);

}  // namespace spillway
