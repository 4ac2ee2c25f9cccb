// A warp's matrix products on tensor cores, 16 x 16 by 16 x 8, as parts of the factors in the
// registers of its lanes (PTX ISA, mma.m16n8k16): lane 4 g + t has numbers 2 t, 2 t + 1, 2 t + 8
// and 2 t + 9 of rows g and g + 8 of the first factor and of column g of the second, and columns 2
// t and 2 t + 1 of rows g and g + 8 of the result. With scalar bodies for the emulation, and for
// bf16 on devices before sm_80, which have no such instruction.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/cuda/kernel.h"

namespace spillway::cuda {

// Two numbers of T in each word, the first in its lower half.
struct FactorRows {  // 16 x 16
  uint32_t x[4];     // Row g, g + 8; row g, g + 8 further right
};
struct FactorColumns {  // 16 x 8
  uint32_t x[2];
};
struct ProductSums {  // 16 x 8
  float x[4];         // Two of row g, two of row g + 8
};

template <class T>
__device__ uint32_t pack_two(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 two = __floats2half2_rn(low, high);
    memcpy(&word, &two, sizeof(word));
  } else {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    memcpy(&word, &two, sizeof(word));
  }
  return word;
}

// Row g and column g of the lane's numbers, and the first of its pairs.
__device__ inline int fragment_group() {
  return static_cast<int>(threadIdx.x) % kWarp / 4;
}
__device__ inline int fragment_pair() {
  return static_cast<int>(threadIdx.x) % 4 * 2;
}

// sums += rows * columns, where rows(lane, i) and columns(lane, i) give the words of another lane.
template <class T, class Rows, class Columns>
__device__ void multiply_add_scalar(ProductSums& sums, const Rows& rows, const Columns& columns) {
  const int group = fragment_group(), pair = fragment_pair();
  const auto number = [](uint32_t word, int i) {
    T two[2];
    memcpy(static_cast<void*>(two), &word, sizeof(word));
    return widen(two[i]);
  };
  for (int k = 0; k < 8; ++k) {  // Pairs of the inner dimension
    const uint32_t left[2] = {rows(group * 4 + k % 4, k / 4 * 2),
                              rows(group * 4 + k % 4, k / 4 * 2 + 1)};
    const uint32_t right[2] = {columns(pair * 4 + k % 4, k / 4),
                               columns(pair * 4 + 4 + k % 4, k / 4)};
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 2; ++j) sums.x[i] += number(left[i / 2], j) * number(right[i % 2], j);
    }
  }
}

#ifdef SPILLWAY_CUDA_EMULATED

template <class T>
void multiply_add(ProductSums& sums, const FactorRows& rows, const FactorColumns& columns) {
  struct Factors {
    FactorRows rows;
    FactorColumns columns;
  };
  const auto all = emulation::gather(0xffffffffu, Factors{rows, columns});
  multiply_add_scalar<T>(
      sums, [&](int lane, int i) { return all[static_cast<size_t>(lane)].rows.x[i]; },
      [&](int lane, int i) { return all[static_cast<size_t>(lane)].columns.x[i]; });
}

// Of the blocks of 8 x 8 numbers in shared memory that begin at at[0], at[8], at[16] and at[24]:
// two numbers of row g of each. So rows of a matrix, each a column of the second factor, become its
// parts for two products.
template <class T>
void load_blocks(const T* at, int stride, uint32_t (&to)[4]) {
  for (int i = 0; i < 4; ++i) {
    memcpy(&to[i], at + fragment_group() * stride + i * 8 + fragment_pair(), sizeof(to[i]));
  }
}

// Of 16 x 16 numbers: two of column g, from rows 0 and 8 on, then of column g + 8: columns of the
// second factor for two products.
template <class T>
void load_transposed(const T* at, int stride, uint32_t (&to)[4]) {
  for (int i = 0; i < 4; ++i) {
    const T* column = at + (i % 2 * 8 + fragment_pair()) * stride + i / 2 * 8 + fragment_group();
    const T two[2] = {column[0], column[stride]};
    memcpy(&to[i], two, sizeof(to[i]));
  }
}

// Copies 16 bytes to shared memory, or fills them with zeros; the thread that does may wait for it
// with wait_for_copies().
inline void copy_ahead(void* to, const void* from, bool there) {
  if (there) {
    memcpy(to, from, 16);
  } else {
    memset(to, 0, 16);
  }
}
// The same with 4 bytes, which are there.
inline void copy_word_ahead(void* to, const void* from) {
  memcpy(to, from, 4);
}
inline void end_of_copies() {}
template <int kLater>
void wait_for_copies() {}

#else

// A function that is called: its many instructions in each product of a kernel would be worse.
template <class T>
__device__ __noinline__ ProductSums multiply_add_exchanged(ProductSums sums, FactorRows rows,
                                                           FactorColumns columns) {
  const auto of = [](const uint32_t* words) {
    return [words](int lane, int i) { return __shfl_sync(0xffffffffu, words[i], lane); };
  };
  multiply_add_scalar<T>(sums, of(rows.x), of(columns.x));
  return sums;
}

template <class T>
__device__ void multiply_add(ProductSums& sums, const FactorRows& rows,
                             const FactorColumns& columns) {
  float* c = sums.x;
  const uint32_t* a = rows.x;
  const uint32_t* b = columns.x;
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  if constexpr (std::is_same_v<T, __half>) {
    for (int i = 0; i < 2; ++i) {
      asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
          "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
    }
  } else {
    sums = multiply_add_exchanged<T>(sums, rows, columns);
  }
#endif
}

template <class T>
__device__ void load_blocks(const T* at, int stride, uint32_t (&to)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto from =
      static_cast<unsigned>(__cvta_generic_to_shared(at + lane % 8 * stride + lane / 8 * 8));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

template <class T>
__device__ void load_transposed(const T* at, int stride, uint32_t (&to)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto from =
      static_cast<unsigned>(__cvta_generic_to_shared(at + lane % 16 * stride + lane / 16 * 8));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

#if __CUDA_ARCH__ >= 800

__device__ inline void copy_ahead(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from),
                 "r"(there ? 16 : 0)
               : "memory");
}
__device__ inline void copy_word_ahead(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
}
// Ends a group of copies; wait_for_copies<n>() waits for all groups but the last n.
__device__ inline void end_of_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kLater>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

#else

__device__ inline void copy_ahead(void* to, const void* from, bool there) {
  *reinterpret_cast<uint4*>(to) =
      there ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
}
__device__ inline void copy_word_ahead(void* to, const void* from) {
  *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(from);
}
__device__ inline void end_of_copies() {}
template <int kLater>
__device__ void wait_for_copies() {}

#endif

#endif

}  // namespace spillway::cuda
