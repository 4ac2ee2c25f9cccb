// The JSON of /v1/chat/completions answers. Pure functions, any thread.
#pragma once

#include <string>

#include "server/api/completion_json.h"

namespace spillway {

// The whole answer, a chat.completion, of a chat that does not stream. REQUIRES: !result.error.
std::string chat_body(const CompletionHead& head, const CompletionCall& call,
                      const ApiContext& context, const CompletionResult& result);

// The answer in the form that the call asked for: chat_body() or completion_body().
std::string answer_body(const CompletionHead& head, const CompletionCall& call,
                        const ApiContext& context, const CompletionResult& result);

}  // namespace spillway
