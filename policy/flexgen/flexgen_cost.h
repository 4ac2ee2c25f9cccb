// FlexGen's cost model, as released: FlexLLMGen (github.com/FMInference/FlexLLMGen, 004ffef),
// experimental/cost_model.py, after section 4 of arXiv 2303.06865. For comparison, and to set its
// choices beside ours. Written from its formulas; its simplifications are kept:
//
//   - OPT in 16 bits, embeddings and biases left out; all prompts as long, all answers as long;
//   - resources overlap, except that decode adds the upload of a layer to the slowest of the rest;
//   - attention of decode over cache that is not on the device runs on the host, one after the
//     other with the device's own work;
//   - activations ("hidden") are not on disk.
//
// A step is one layer for the whole block: micro_batch x micro_batches sequences. Sizes in bytes,
// times in seconds, rates as FlexgenHardware has them. Pure arithmetic, any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"
#include "policy/flexgen/flexgen_hardware.h"

namespace spillway {

struct FlexgenProblem {
  ModelShape shape;
  FlexgenHardware hardware;
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;           // Per sequence; the prompts' pass gives the first
  bool compressed_weights = false;  // A quarter of the bytes; nothing else changes
};

// kInvalidArgument when the model does not describe this: a family other than OPT, lengths below 1.
Status validate(const FlexgenProblem& problem);

struct FlexgenBlock {
  int64_t micro_batch = 1, micro_batches = 1;
  int64_t sequences() const { return micro_batch * micro_batches; }
};

struct PerTier {
  double device = 0, host = 0, disk = 0;
};

// Shares of the bytes of each kind; those of a kind add up to 1.
struct FlexgenPlacement {
  PerTier weights, cache, hidden;
};

struct FlexgenCost {
  // Seconds of one step by resource, and all in all.
  struct Step {
    double host_to_device = 0, device_to_host = 0, disk_to_host = 0, host_to_disk = 0;
    double device_compute = 0, host_compute = 0;
    double seconds = 0;
  } prefill, decode;

  double prefill_seconds = 0, decode_seconds = 0;  // All layers; decode: without the first token
  double total_seconds = 0;
  double tokens_per_second = 0;                   // New tokens / total seconds
  PerTier prefill_peak_bytes, decode_peak_bytes;  // The disk has one peak, in both
};

// REQUIRES: validate(problem).ok(), a block of at least 1 x 1, shares that add up.
FlexgenCost flexgen_cost(const FlexgenProblem& problem, const FlexgenBlock& block,
                         const FlexgenPlacement& placement);

// Shares that are given; the linear program chooses the others.
struct FlexgenPins {
  struct Kind {
    std::optional<double> device, host;
  } weights, cache, hidden;
};

// Each tier's memory, and how much of it the model may plan for: its peaks are too low, so the
// released search leaves a fifth free. Infinite memory is no limit.
struct FlexgenLimits {
  PerTier memory_bytes;
  PerTier usable = {0.8, 0.8, 0.8};
};

struct FlexgenChoice {
  FlexgenBlock block;
  FlexgenPlacement placement;
  FlexgenCost cost;
};

// The placement with the least time for this block, by a linear program over its nine shares.
// kInfeasible when none fits. REQUIRES: as for flexgen_cost(); pins within [0, 1].
Result<FlexgenChoice> flexgen_placement(const FlexgenProblem& problem, const FlexgenBlock& block,
                                        const FlexgenPins& pins, const FlexgenLimits& limits);

}  // namespace spillway
