// Random weights of a true shape, for benchmarks: matrices and tables uniform with deviation 0.02,
// norm weights 1, biases 0. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "offload/model_file/model_file.h"

namespace spillway {

// Fills `target` with all bytes of slab `slab` of a planned table (plan_model_file); padding is
// zero, except that of 4-bit groups. The same table, slab and seed give the same bytes. About 2
// GB/s a thread.
void fill_dummy_slab(const ModelFileTable& table, uint32_t slab, uint64_t seed,
                     std::span<std::byte> target);

}  // namespace spillway
