// parse_completion on any bytes: what is accepted keeps every bound that the scheduler relies on,
// and is read the same a second time; what is refused has a small, valid error.
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kernels/base/check.h"
#include "server/api/completion.h"
#include "tests/support/tiny_shape.h"

namespace spillway {
namespace {

void check_bounds(const CompletionCall& call, const ApiContext& context) {
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

void check_error(const ApiError& error) {
  SPILLWAY_CHECK(error.status == 400 || error.status == 404);
  const std::string text = error.json();
  SPILLWAY_CHECK(text.size() < 16 * 1024);
  SPILLWAY_CHECK(nlohmann::json::accept(text));
}

ApiContext make_context(const ModelShape& shape) {
  ApiContext context;
  context.shape = &shape;
  context.model_names = {"m"};
  context.limits.sequences_max = 16;
  context.limits.json_values_max = 10'000;
  return context;
}

}  // namespace
}  // namespace spillway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const ModelShape shape = test::make_shape({.vocabulary = 50'272, .positions = 2048});
  const ApiContext context = make_context(shape);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto parsed = parse_completion(body, context);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    check_error(*error);
    return 0;
  }
  const auto& call = std::get<CompletionCall>(parsed);
  check_bounds(call, context);
  const auto again = parse_completion(body, context);
  SPILLWAY_CHECK(std::holds_alternative<CompletionCall>(again));
  const auto& second = std::get<CompletionCall>(again);
  SPILLWAY_CHECK(second.requests.size() == call.requests.size());
  for (size_t i = 0; i < call.requests.size(); ++i) {
    SPILLWAY_CHECK(second.requests[i].prompt == call.requests[i].prompt);
    SPILLWAY_CHECK(second.requests[i].max_tokens == call.requests[i].max_tokens);
  }
  return 0;
}
