// Measures how well a model predicts a text under a KV rule: windows of tokens, each a prompt and a
// rest that is scored token by token through the decode path. Engine thread only.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "policy/kv_rule.h"
#include "server/cli/eval/eval.h"
#include "server/runtime.h"

namespace spillway {

constexpr int64_t kEvalWindowsAtOnce = 32;  // Fewer if the KV cache is smaller

struct EvalScore {
  double nats = 0;  // Sum of -log p over the scored tokens
  int64_t tokens = 0;
  uint64_t bytes = 0;  // Bytes of the scored tokens' text
  int64_t windows = 0;

  double perplexity() const { return std::exp(nats / static_cast<double>(tokens)); }
  double bits_per_byte() const { return nats / std::log(2.0) / static_cast<double>(bytes); }
};

// Cuts the text into windows of `context` tokens, each with the tokenizer's bos (unless -1) in
// front. A window without tokens to score is left out.
std::vector<std::vector<int32_t>> cut_windows(const std::vector<int32_t>& text, int32_t bos,
                                              const EvalFlags& flags);

// Scores the windows, as many at once as the KV cache holds; `progress` is called with the number
// of windows done. REQUIRES: a tokenizer and an engine without scheduler.
Result<EvalScore> score_windows(Runtime& runtime, std::span<const std::vector<int32_t>> windows,
                                const EvalFlags& flags, const KvRule& rule,
                                const std::function<void(int64_t)>& progress);

}  // namespace spillway
