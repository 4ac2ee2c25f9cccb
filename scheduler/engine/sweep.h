// The work of a sweep: one item per sequence, cut into micro-batches (policy/batching.h). Values.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/sampling/sample.h"
#include "offload/kv_cache.h"
#include "policy/batching.h"

namespace spillway {

// One sequence's part of a sweep: a whole prompt at position 0, or one token.
struct SweepItem {
  std::span<const int32_t> tokens;
  int64_t position = 0;
  KvSequence* kv = nullptr;
  bool all_logits = false;  // Logits of every token, else of the last one
  bool no_logits = false;
  // With a count: only the token sampled from the logits is needed. Not with all_logits.
  SampleRule sample = {};
};

// Shorter waits are not shown in a trace: the data had arrived.
constexpr double kWaitShownSeconds = 5e-6;

}  // namespace spillway
