// The choices of /v1/completions answers as JSON. Pure functions, any thread; never on the engine
// thread (an echo with logprobs is megabytes).
#pragma once

#include "server/api/answer_parts.h"

namespace spillway {

// One choice of a text_completion: a whole one, or what a chunk of a stream has of it.
AnswerJson completion_choice(const CompletionCall& call, const ApiContext& context,
                             const ChoiceText& piece);

}  // namespace spillway
