// FlexGen's generation loop as a simulation, to set its schedule beside ours on hardware that one
// does not own. Written after reading FlexLLMGen (github.com/FMInference/FlexLLMGen, 004ffef:
// flex_opt.py, pytorch_backend.py) and arXiv 2303.06865; no constant here is fitted to its results,
// but one of the profile t4-16gb is, the host memory's rate (docs/benchmarks).
//
// What it does, as its code does it:
//
//   - Static batches, padded: every prompt as long, every answer as long.
//   - Attention and MLP are layers of their own, beside the input and the output embedding. For
//     every (layer, micro-batch) a step: it loads the next layer's weights, the next micro-batch's
//     cache and activations, computes, and stores those of the one before. Then it waits for all
//     of it: a full barrier.
//   - The next layer's weights are asked for in the first micro-batch's step, all of them (the
//     paper's figure spreads them; the code does not). They overlap with that step alone.
//   - Activations come and go on the device's own stream, before the step's work. The link takes
//     what comes first, so in a step with weights they come behind those, and only then does the
//     step's own work begin: weights and host attention take turns, as in FlexGen's cost model.
//   - A tensor lives where the middle of its bytes falls in the shares disk, host, device, in this
//     order: "20 80" puts one of the twelve h x h blocks of a layer, 8 %, on the device.
//   - The cache is stored in 16 bits. With a part of it off the device, decode attends to that
//     part on the host: rows are widened to 32 bits into a workspace, K and V are each copied into
//     another order, and two products read them. One Python thread does that, one thing after
//     another; the result returns over the link behind the weights that are on their way.
//   - Through pageable memory (cache on host or disk, weights on disk or not pinned) bytes are
//     copied once more by the host.
//   - Prompts pay for the whole square of scores, and for logits at every position.
//
// Assumed: the host's copies and products run at its memory's rate, bytes read plus bytes written;
// so do attention's copies on the device. The disk is as fast as in the profile, without a page
// cache. Left out: Python, kernel launches, element-wise kernels, memory that is first touched.
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
  FlexgenPlacement placement;  // As asked for
  bool overlap = true;
  bool pinned_weights = true;  // Those in host memory

  // As its benchmarks with `--debug fewer_batch` do, which gave the paper's figures for models that
  // are offloaded: of decode only the first step's first 20 layers run, and the mean of the last
  // ten of these stands for every layer of every step. Else all of it runs.
  bool fewer_batches = false;
};

// Where the weights really are, embeddings included.
PerTier flexgen_weight_bytes(const FlexgenRun& run);

// kInvalidArgument: the profile lacks a rate, or has no link; a shape that is not OPT's.
Result<SimulatedRun> simulate_flexgen(const FlexgenRun& run, const HardwareProfile& hardware);

// The same block in the same places by our schedule (simulated_sweep.h): attention over a cache in
// host memory where it is faster (host_attention_pays), all prompts in one sweep, rings for two
// layers of weights and two micro-batches.
Result<SimulatedRun> simulate_our_schedule(const FlexgenRun& run, const HardwareProfile& hardware);

}  // namespace spillway
