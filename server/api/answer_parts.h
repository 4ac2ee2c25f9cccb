// What the choices of completions and chats share in JSON. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "server/api/completion_run.h"

namespace spillway {

// Fields in the order in which they are set. Numbers are floats: "-0.1" and not
// "-0.10000000149011612".
using AnswerJson = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool,
                                        int64_t, uint64_t, float>;

// JSON has no infinity; clients of vLLM know -9999.
float finite_logprob(float logprob);

// vLLM's prompt_logprobs: for each prompt token but the first, which is null, the likeliest tokens
// and itself, {"id": {"logprob","rank","decoded_token"}}.
AnswerJson prompt_logprobs_json(const CompletionCall& call, const ApiContext& context,
                                const std::vector<TokenScore>& scores);

// The end of a choice, null before it: "stop" or "length".
AnswerJson finish_reason_json(const ChoiceText& piece);

// vLLM's stop_reason: the stop string or the named stop token that ended the choice, else null.
AnswerJson stop_reason_json(const ChoiceText& piece);

}  // namespace spillway
