// What the choices of completions and chats share in JSON. Pure functions, any thread.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

#include "server/api/completion_run.h"

namespace spillway {

// Fields in the order in which they are set. Numbers are floats: "-0.1" and not
// "-0.10000000149011612".
using AnswerJson = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool,
                                        int64_t, uint64_t, float>;

// JSON has no infinity; clients of vLLM know -9999.
inline float finite_logprob(float logprob) {
  return std::isfinite(logprob) ? logprob : -9999.0f;
}

// vLLM's prompt_logprobs: for each prompt token but the first, which is null, the likeliest tokens
// and itself, {"id": {"logprob","rank","decoded_token"}}.
AnswerJson prompt_logprobs_json(const CompletionCall& call, const ApiContext& context,
                                const std::vector<TokenScore>& scores);

// The end of a choice, null before it: "stop" or "length".
inline AnswerJson finish_reason_json(const ChoiceText& piece) {
  if (!piece.finished) return {};
  return piece.hit_length ? "length" : "stop";
}

// vLLM's stop_reason: the stop string or the named stop token that ended the choice, else null.
inline AnswerJson stop_reason_json(const ChoiceText& piece) {
  if (piece.stop_string) return *piece.stop_string;
  if (piece.stop_token) return *piece.stop_token;
  return {};
}

}  // namespace spillway
