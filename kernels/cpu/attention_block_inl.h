// The blocks of query rows in which attention_tile.h computes; included once per instruction set.
// All files with them must be compiled for the same sets (CMakeLists.txt): a block has as many rows
// in each.
#if defined(SPILLWAY_CPU_ATTENTION_BLOCK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_ATTENTION_BLOCK_INL_H
#undef SPILLWAY_CPU_ATTENTION_BLOCK_INL_H
#else
#define SPILLWAY_CPU_ATTENTION_BLOCK_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/cpu/attention_pack.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(D()));

// A kernel's sums: a strip of 8 or 4 keys (of the head's numbers, in the second product) times
// three vectors of query rows. 24 of 32 registers, else 12 of 16.
constexpr int64_t kVectors = 3;
constexpr int64_t kBlock = kVectors * kLanes;

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#endif
