// FlexGen's generation loop as a simulation, to compare its schedule with ours on hardware that is
// not at hand. Written after reading FlexLLMGen (github.com/FMInference/FlexLLMGen, 004ffef:
// flex_opt.py, pytorch_backend.py) and arXiv 2303.06865; no constant here is fitted to its results,
// but one of the profile t4-16gb is, the host memory's rate (docs/benchmarks).
//
// The loop's behaviour, as in its code:
//
//   - Static batches, padded: every prompt as long, every answer as long.
//   - Attention and MLP are layers of their own, beside the input and the output embedding. Each
//     (layer, micro-batch) is a step: it loads the next layer's weights, the next micro-batch's
//     cache and activations, computes, and stores those of the one before. Then it waits for all
//     of it: a full barrier.
//   - The next layer's weights are all requested in the first micro-batch's step (the paper's
//     figure spreads them; the code does not). They overlap with that step alone.
//   - Activations are copied on the device's own stream, before the step's work. The link serves
//     copies in order, so in a step with weights they come behind those, and only then does the
//     step's own work begin: weights and host attention take turns, as in FlexGen's cost model.
//   - A tensor lives on the tier where the middle of its bytes falls in the shares disk, host,
//     device, in this order: "20 80" puts one of the twelve h x h blocks of a layer, 8 %, on the
//     device.
//   - The cache is stored in 16 bits. With a part of it off the device, decode attends to that
//     part on the host: rows are widened to 32 bits into a workspace, K and V are each copied into
//     another order, and two matrix products read them. One Python thread does that, one step
//     after another; the result returns over the link behind the weights already queued there.
//   - Bytes in pageable memory (cache on host or disk, weights on disk or not pinned) are copied
//     once more by the host.
//   - Prompts pay for the whole square of scores, and for logits at every position.
//
// Assumed: the host's copies and matrix products run at its memory's rate, bytes read plus bytes
// written; so do attention's copies on the device. The disk is as fast as in the profile, without a
// page cache. Left out: Python, kernel launches, element-wise kernels, page faults of first use.
//
// Pure arithmetic, any thread.
#pragma once

#include <cstdint>

#include "policy/flexgen/flexgen_cost.h"
#include "policy/hardware_profile.h"
#include "policy/simulation/simulated_sweep.h"

namespace spillway {

struct FlexgenRun {
  ModelShape shape;  // OPT
  int64_t prompt_tokens = 0, new_tokens = 0;
  FlexgenBlock block;
  FlexgenPlacement placement;  // As requested
  bool overlap = true;
  bool pinned_weights = true;  // For weights in host memory

  // Runs like its benchmarks with `--debug fewer_batch`, which gave the paper's figures for
  // offloaded models: of decode only the first step's first 20 layers run, and the mean of the last
  // ten of these is taken for every layer of every step. Otherwise everything runs.
  bool fewer_batches = false;
};

// Bytes of weights on each tier after rounding to whole tensors, embeddings included.
PerTier flexgen_weight_bytes(const FlexgenRun& run);

// kInvalidArgument: the profile lacks a rate, or has no link; a shape that is not OPT's.
Result<SimulatedRun> simulate_flexgen(const FlexgenRun& run, const HardwareProfile& hardware);

// Our schedule (simulated_sweep.h) for the given block and placement: attention over a cache in
// host memory where it is faster (host_attention_pays), all prompts in one sweep, rings for two
// layers of weights and two micro-batches.
Result<SimulatedRun> simulate_our_schedule(const FlexgenRun& run, const HardwareProfile& hardware);

}  // namespace spillway
