// Ranks that are GPUs, each with a thread or a process of its own, over NCCL. The library is loaded
// at the first use. Streams must be of the rank's GPU; all calls are queued and do not wait.
//
// kNotFound: NCCL or CUDA is not there, or this build has neither. kDeviceLost: NCCL failed.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/rank_group.h"

namespace spillway {

// Those of one process: a rank for each GPU, by its index among the CUDA devices. Each for a thread
// of its own. kInvalidArgument: a GPU is named twice, or there is none.
Result<std::vector<std::unique_ptr<RankGroup>>> gpu_ranks(std::span<const int> gpus);

// One of several processes, which all call it: they learn of each other through `processes`, on
// `host`, a CPU's stream. The rank is that of the process.
Result<std::unique_ptr<RankGroup>> gpu_rank(RankGroup& processes, Stream& host, int gpu);

}  // namespace spillway
