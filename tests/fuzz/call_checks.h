// What the fuzz targets of request bodies hold calls and errors to.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/check.h"
#include "server/api/completion.h"

namespace spillway::test {

// Every bound that the scheduler relies on.
inline void check_bounds(const CompletionCall& call, const ApiContext& context) {
  const auto& shape = *context.shape;
  const auto& limits = context.limits;
  SPILLWAY_CHECK(!call.requests.empty());
  SPILLWAY_CHECK(static_cast<int64_t>(call.requests.size()) <= limits.sequences_max);
  SPILLWAY_CHECK(call.requests.size() % static_cast<size_t>(call.samples) == 0);
  SPILLWAY_CHECK(static_cast<int64_t>(call.stop.size()) <= limits.stops_max);
  SPILLWAY_CHECK(call.logprobs >= -1 && call.logprobs <= limits.logprobs_max);
  for (const Request& request : call.requests) {
    const auto length = static_cast<int64_t>(request.prompt.size());
    SPILLWAY_CHECK(length >= 1 && request.max_tokens >= 0);
    SPILLWAY_CHECK(length + request.max_tokens <= shape.positions);
    SPILLWAY_CHECK(request.min_tokens >= 0 && request.min_tokens <= request.max_tokens);
    for (const int32_t id : request.prompt) SPILLWAY_CHECK(id >= 0 && id < shape.vocabulary);
    for (const int32_t id : request.stop_tokens) SPILLWAY_CHECK(id >= 0 && id < shape.vocabulary);
    const SamplingParams& s = request.sampling;
    SPILLWAY_CHECK(s.temperature >= 0 && s.temperature <= 2);
    SPILLWAY_CHECK(s.top_p > 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1 && s.top_k >= 0);
    SPILLWAY_CHECK(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty));
    SPILLWAY_CHECK(std::abs(s.presence_penalty) <= 2 && std::abs(s.frequency_penalty) <= 2);
    for (const auto& [id, bias] : s.logit_bias) {
      SPILLWAY_CHECK(id >= 0 && id < shape.vocabulary && std::abs(bias) <= 100);
    }
  }
}

// Small, valid JSON that blames the client.
inline void check_error(const ApiError& error) {
  SPILLWAY_CHECK(error.status == 400 || error.status == 404);
  const std::string text = error.json();
  SPILLWAY_CHECK(text.size() < 16 * 1024);
  SPILLWAY_CHECK(nlohmann::json::accept(text));
}

// The same call as `first`, from the same body.
inline void check_same(const CompletionCall& first, const CompletionCall& second) {
  SPILLWAY_CHECK(second.requests.size() == first.requests.size());
  for (size_t i = 0; i < first.requests.size(); ++i) {
    SPILLWAY_CHECK(second.requests[i].prompt == first.requests[i].prompt);
    SPILLWAY_CHECK(second.requests[i].max_tokens == first.requests[i].max_tokens);
  }
}

}  // namespace spillway::test
