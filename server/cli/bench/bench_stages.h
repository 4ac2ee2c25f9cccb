// `spillway bench --stages N`: tokens/s of a block on several ranks. The bounds of `bench` are one
// machine's; here is what was measured.
#pragma once

#include <string>

#include "server/cli/bench/bench_result.h"
#include "server/stages/staged_runtime.h"

namespace spillway {

// On rank 0. Prints the result.
Status bench_stages(BenchFlags flags, EngineFlags engine, const std::string& model,
                    StageRank& rank);

}  // namespace spillway
