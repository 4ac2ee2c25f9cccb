// Tile: a warp's product of 16 x 16 tiles on tensor cores, with a scalar body that runs in the
// emulation, and for bf16 on devices before sm_80, which have no such instruction.
#pragma once

#include "kernels/cuda/kernel.h"

#ifndef SPILLWAY_CUDA_EMULATED
#include <mma.h>
#endif

namespace spillway::cuda {

constexpr int kTileSide = 16;

// Memory order of the second factor: element (k, n) at k * stride + n, or at n * stride + k.
enum class TileOrder { kRows, kColumns };

// Tile of float32 sums of products, spread over the lanes of a warp; all lanes call each function.
// The factors are [16][16] of T in shared memory, rows (columns) `stride` elements apart: addresses
// a multiple of 32 bytes, strides of 16.
template <class T>
class ScalarTile {
 public:
  __device__ void clear() {
    for (float& sum : sums_) sum = 0;
  }

  template <TileOrder kOrder>
  __device__ void add(const T* a, unsigned a_stride, const T* b, unsigned b_stride) {
    for (unsigned i = 0; i < kEach; ++i) {
      const unsigned row = element(i) / kTileSide, column = element(i) % kTileSide;
      float sum = sums_[i];
      for (unsigned k = 0; k < kTileSide; ++k) {
        const T& factor =
            kOrder == TileOrder::kRows ? b[k * b_stride + column] : b[column * b_stride + k];
        sum += widen(a[row * a_stride + k]) * widen(factor);
      }
      sums_[i] = sum;
    }
  }

  // Stores row-major, rows `stride` floats apart, a multiple of 4. Other lanes may read the result
  // after __syncwarp().
  __device__ void store(float* to, unsigned stride) const {
    for (unsigned i = 0; i < kEach; ++i) {
      to[element(i) / kTileSide * stride + element(i) % kTileSide] = sums_[i];
    }
  }

 private:
  static constexpr unsigned kEach = kTileSide * kTileSide / kWarp;
  __device__ static unsigned element(unsigned i) { return threadIdx.x % kWarp * kEach + i; }

  float sums_[kEach];
};

#ifdef SPILLWAY_CUDA_EMULATED

template <class T>
using Tile = ScalarTile<T>;

#else

template <class T>
class TensorTile {
 public:
  __device__ void clear() { nvcuda::wmma::fill_fragment(sums_, 0.0f); }

  template <TileOrder kOrder>
  __device__ void add(const T* a, unsigned a_stride, const T* b, unsigned b_stride) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, kTileSide, kTileSide, kTileSide, T, row_major> left;
    load_matrix_sync(left, a, a_stride);
    if constexpr (kOrder == TileOrder::kRows) {
      fragment<matrix_b, kTileSide, kTileSide, kTileSide, T, row_major> right;
      load_matrix_sync(right, b, b_stride);
      mma_sync(sums_, left, right, sums_);
    } else {
      fragment<matrix_b, kTileSide, kTileSide, kTileSide, T, col_major> right;
      load_matrix_sync(right, b, b_stride);
      mma_sync(sums_, left, right, sums_);
    }
  }

  __device__ void store(float* to, unsigned stride) const {
    nvcuda::wmma::store_matrix_sync(to, sums_, stride, nvcuda::wmma::mem_row_major);
  }

 private:
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, kTileSide, kTileSide, kTileSide, float> sums_;
};

template <class T>
struct TileOf {
  using Type = TensorTile<T>;
};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <>
struct TileOf<__nv_bfloat16> {
  using Type = ScalarTile<__nv_bfloat16>;
};
#endif
template <class T>
using Tile = typename TileOf<T>::Type;

#endif

}  // namespace spillway::cuda
