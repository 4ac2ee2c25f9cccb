// Placements of a model's data over the three tiers, and requests of all kinds, which every one of
// them must answer alike.
#pragma once

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/model_shape.h"
#include "scheduler/planning/engine_flags.h"
#include "scheduler/request.h"
#include "tests/support/random_data.h"

namespace spillway::test {

inline constexpr TierPercent kAllDevice = {100, 0, 0};

struct TierSetup {
  const char* name = "";
  TierPercent weights = kAllDevice, kv = kAllDevice, activations = kAllDevice;
  bool overlap = true;
  std::optional<int64_t> micro_batch = {};
  const char* attention = "device";  // Over KV on host
  int64_t prefill_tokens = 0;        // 0: every prompt goes whole
};

// For a device with memory of its own; on a CPU, device and host are one.
inline std::vector<TierSetup> tier_setups() {
  return {
      {.name = "weights on host", .weights = {0, 100, 0}},
      {.name = "weights on disk", .weights = {0, 0, 100}},
      {.name = "KV on host", .kv = {0, 100, 0}},
      {.name = "KV on disk", .kv = {0, 0, 100}, .micro_batch = 2},
      {.name = "activations on host", .activations = {0, 100, 0}, .micro_batch = 2},
      {.name = "activations on disk", .activations = {0, 0, 100}, .micro_batch = 2},
      {.name = "mixed",
       .weights = {20, 30, 50},
       .kv = {30, 30, 40},
       .activations = {10, 40, 50},
       .micro_batch = 2},
      {.name = "mixed, no overlap",
       .weights = {30, 50, 20},
       .kv = {10, 50, 40},
       .activations = {40, 30, 30},
       .overlap = false,
       .micro_batch = 3},
      {.name = "KV on host, the CPU attends", .kv = {0, 100, 0}, .attention = "host"},
      {.name = "KV on host, the CPU attends to one of many micro-batches",
       .kv = {0, 100, 0},
       .activations = {0, 100, 0},
       .micro_batch = 1,
       .attention = "host"},
      {.name = "mixed, the CPU attends",
       .weights = {20, 30, 50},
       .kv = {30, 40, 30},
       .activations = {50, 50, 0},
       .micro_batch = 2,
       .attention = "host"},
      {.name = "mixed, activations on disk, the CPU attends",
       .kv = {20, 50, 30},
       .activations = {10, 40, 50},
       .micro_batch = 1,
       .attention = "host"},
      {.name = "mixed, no overlap, the CPU attends",
       .kv = {40, 60, 0},
       .overlap = false,
       .micro_batch = 2,
       .attention = "host"},
  };
}

inline EngineFlags tier_flags(const char* device, Format format, Format kv_format,
                              const TierSetup& setup) {
  EngineFlags flags;
  flags.device = device;
  flags.format = format;
  flags.kv_format = kv_format;
  flags.weights = setup.weights;
  flags.kv = setup.kv;
  flags.activations = setup.activations;
  flags.no_overlap = !setup.overlap;
  flags.attention = setup.attention;
  flags.block = 4;
  flags.micro_batch = setup.micro_batch;
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  flags.device_memory_bytes = uint64_t{1} << 30;
  if (setup.prefill_tokens > 0) flags.prefill_tokens = setup.prefill_tokens;
  return flags;
}

// Ten ragged ones, drawn by `seed`, with every KV rule among them.
inline std::vector<Request> tier_requests(const ModelShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Request> requests(10);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = random_prompt(random, 30, shape.vocabulary);
    requests[i].max_tokens = static_cast<int32_t>(2 + random() % 9);
    requests[i].ignore_eos = true;
    requests[i].sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;  // Drawn on the device
    if (i == 4) requests[i].logprobs = 2;                         // But for this one
    if (i % 3 == 1) {
      requests[i].kv.kind = KvRuleKind::kH2o;
      requests[i].kv.heavy = requests[i].kv.recent = KvAmount{5, 0};
    } else if (i % 3 == 2) {
      requests[i].kv.kind = KvRuleKind::kWindow;
      requests[i].kv.recent = KvAmount{6, 0};
      requests[i].kv.keep = 2;
    }
    if (i == 7) requests[i].kv.keep = 3;  // Of h2o's
    if (i == 8) {
      requests[i].kv.kind = KvRuleKind::kRandom;
      requests[i].kv.heavy = KvAmount{6, 0};
    }
    if (i == 9) {
      requests[i].kv.kind = KvRuleKind::kSnap;
      requests[i].kv.heavy = KvAmount{6, 0};
    }
  }
  return requests;
}

}  // namespace spillway::test
