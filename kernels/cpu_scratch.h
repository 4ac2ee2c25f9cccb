// Scratch memory of the CPU's ops, beyond their arguments, for memory planning.
#pragma once

#include <cstdint>

#include "kernels/base/model_shape.h"

namespace spillway {

// Bytes of scratch that a CPU device of `threads` threads (0: one per processor) may hold after
// prompts of up to `prompt_tokens`, those behind a beginning counted with it, under any KV rule:
// each thread's attention scratch, and the packed rows of a matrix product, which all threads
// share. A thread also expands 4-bit weights for products by 8-bit integers, 66 bytes an input, in
// the memory of its attention scratch. Attention takes a few MiB a thread; what grows with the
// prompt is its scores, 4 bytes a token.
uint64_t cpu_scratch_bytes(const ModelShape& shape, int64_t threads, int64_t prompt_tokens);

}  // namespace spillway
