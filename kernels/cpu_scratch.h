// What the CPU's ops take besides what they are given, for whoever plans memory.
#pragma once

#include <cstdint>

#include "kernels/base/model_shape.h"

namespace spillway {

// Scratch that a CPU device of so many threads (0: one a processor) may hold after prompts of up to
// `prompt_tokens`, whatever KV rule they bring: each thread's attention, and the packed rows of a
// product that all share.
uint64_t cpu_scratch_bytes(const ModelShape& shape, int64_t threads, int64_t prompt_tokens);

}  // namespace spillway
