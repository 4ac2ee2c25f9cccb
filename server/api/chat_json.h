// The choices of /v1/chat/completions answers as JSON. Pure functions, any thread.
#pragma once

#include "server/api/answer_parts.h"

namespace spillway {

// One choice of a chat.completion, with `message`. REQUIRES: choice.finished.
AnswerJson chat_choice(const CompletionCall& call, const ApiContext& context,
                       const ChoiceText& choice);

// What a chat.completion.chunk has of a choice, with `delta`; the first has the role, too.
AnswerJson chat_delta(const CompletionCall& call, const ApiContext& context,
                      const ChoiceText& piece);

}  // namespace spillway
