#include "kernels/input_hadamard.h"

#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/input_hadamard.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

// Where lane i's partner is, for neighbours at distance 1, 2, 4 and 8, and the sign of its own
// number.
#ifndef SPILLWAY_INPUT_HADAMARD_TABLES
#define SPILLWAY_INPUT_HADAMARD_TABLES
namespace spillway {
namespace {
constexpr size_t kTableLanes = 16;
struct LaneTables {
  alignas(64) int32_t partner[4][kTableLanes];
  alignas(64) float sign[4][kTableLanes];
};
constexpr LaneTables kLaneTables = [] {
  LaneTables tables{};
  for (size_t level = 0; level < 4; ++level) {
    for (size_t i = 0; i < kTableLanes; ++i) {
      const size_t step = size_t{1} << level;
      tables.partner[level][i] = static_cast<int32_t>(i ^ step);
      tables.sign[level][i] = (i & step) == 0 ? 1.0f : -1.0f;
    }
  }
  return tables;
}();
}  // namespace
}  // namespace spillway
#endif

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kTableLanes>;
using V = hn::Vec<D>;

// Factor, sums and differences of kVectors vectors in registers. (A number times 1 or -1 plus
// another is rounded once, with or without an instruction for it.)
template <size_t kVectors>
HWY_INLINE void multiply_vectors(float* HWY_RESTRICT x, float factor) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V v[kVectors];
  for (size_t i = 0; i < kVectors; ++i) {
    v[i] = hn::Mul(hn::LoadU(d, x + i * lanes), hn::Set(d, factor));
  }
  size_t level = 0;
  for (size_t step = 1; step < lanes; step *= 2, ++level) {
    const auto partners = hn::SetTableIndices(d, kLaneTables.partner[level]);
    const V sign = hn::LoadU(d, kLaneTables.sign[level]);
    for (size_t i = 0; i < kVectors; ++i) {
      v[i] = hn::MulAdd(v[i], sign, hn::TableLookupLanes(v[i], partners));
    }
  }
  for (size_t step = 1; step < kVectors; step *= 2) {
    for (size_t i = 0; i < kVectors; ++i) {
      if ((i & step) != 0) continue;
      const V a = v[i], b = v[i + step];
      v[i] = hn::Add(a, b);
      v[i + step] = hn::Sub(a, b);
    }
  }
  for (size_t i = 0; i < kVectors; ++i) hn::StoreU(v[i], d, x + i * lanes);
}

HWY_INLINE void add_vectors(float* HWY_RESTRICT x, size_t block, size_t step) {
  const D d;
  for (size_t first = 0; first < block; first += 2 * step) {
    for (size_t i = first; i < first + step; i += hn::Lanes(d)) {
      const V a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + step);
      hn::StoreU(hn::Add(a, b), d, x + i);
      hn::StoreU(hn::Sub(a, b), d, x + i + step);
    }
  }
}

// A block smaller than a vector.
void multiply_few(float* HWY_RESTRICT x, size_t block, float factor) {
  for (size_t i = 0; i < block; ++i) x[i] *= factor;
  for (size_t step = 1; step < block; step *= 2) {
    for (size_t i = 0; i < block; ++i) {
      if ((i & step) != 0) continue;
      const float a = x[i], b = x[i + step];
      x[i] = a + b;
      x[i + step] = a - b;
    }
  }
}

void MultiplyBlock(float* HWY_RESTRICT x, size_t block, float factor) {
  constexpr size_t kVectors = 8;  // With tables and signs, half of the registers of AVX-512
  const size_t lanes = hn::Lanes(D());
  const size_t chunk = kVectors * lanes;
  if (block < lanes) return multiply_few(x, block, factor);
  if (block == lanes) return multiply_vectors<1>(x, factor);
  if (block == 2 * lanes) return multiply_vectors<2>(x, factor);
  if (block == 4 * lanes) return multiply_vectors<4>(x, factor);
  for (size_t i = 0; i < block; i += chunk) multiply_vectors<kVectors>(x + i, factor);
  for (size_t step = chunk; step < block; step *= 2) add_vectors(x, block, step);
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(MultiplyBlock);

void multiply_by_hadamard_block(float factor, int64_t block, float* x) {
  HWY_DYNAMIC_DISPATCH(MultiplyBlock)(x, static_cast<size_t>(block), factor);
}

void multiply_by_hadamard(HadamardOf of, int64_t columns, float* row) {
  for (int64_t first = 0; first < columns;) {
    const int64_t block = hadamard_block(first, columns);
    multiply_by_hadamard_block(
        of == HadamardOf::kInputs ? input_factor(block) : weight_factor(block), block, row + first);
    first += block;
  }
}

}  // namespace spillway
#endif  // HWY_ONCE
