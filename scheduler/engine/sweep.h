// The work of a sweep: one item per sequence, cut into micro-batches (policy/batching.h). Values.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/sampling/sample.h"
#include "offload/kv_cache.h"
#include "policy/batching.h"

namespace spillway {

// One sequence's part of a sweep: a prompt or a chunk of it, or one token, which a draft of those
// that follow it may stand behind.
struct SweepItem {
  std::span<const int32_t> tokens;
  int64_t position = 0;
  int64_t prompt = 0;  // Length of the prompt that the tokens are of; 0: a decode step
  KvSequence* kv = nullptr;
  bool all_logits = false;  // Logits of every token, else of the last one
  bool no_logits = false;
  // With a count: only the token sampled from the logits is needed. Not with all_logits.
  SampleRule sample = {};
  // Of a decode step with a draft, whose tokens all have logits: the rule of each token, in place
  // of `sample`. Empty: `sample` is for the last one.
  std::span<const SampleRule> samples = {};

  bool is_step() const { return prompt == 0 && position > 0; }
  // The first token that has logits.
  int64_t first_logits() const {
    const auto count = static_cast<int64_t>(tokens.size());
    return no_logits ? count : all_logits || is_step() ? 0 : count - 1;
  }
  const SampleRule& rule(int64_t token) const {
    return samples.empty() ? sample : samples[static_cast<size_t>(token)];
  }
  // A whole prompt at position 0 may leave `prompt` 0.
  int64_t prompt_tokens() const {
    return prompt > 0 ? prompt : static_cast<int64_t>(tokens.size());
  }
  bool ends_prompt() const {
    return !is_step() && position + static_cast<int64_t>(tokens.size()) == prompt_tokens();
  }
};

// Shorter waits are not shown in a trace: the data had arrived.
constexpr double kWaitShownSeconds = 5e-6;

}  // namespace spillway
