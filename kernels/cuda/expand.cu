// Expansion of quantised rows into the format of activations: one block per row. The few
// instructions per number, not memory, bound its speed.
#include "kernels/cuda/expand.h"

#include <cstring>

#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/quant.cuh"

namespace spillway::cuda {

namespace {

constexpr unsigned kThreads = 256;

constexpr int kEach = 8;  // Numbers that a lane writes

// Packs two numbers side by side, as they lie in memory.
__device__ inline uint32_t pair(__half, float first, float second) {
  const __half2 both = __floats2half2_rn(first, second);
  uint32_t word;
  memcpy(&word, &both, sizeof(word));
  return word;
}
__device__ inline uint32_t pair(__nv_bfloat16, float first, float second) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
  uint32_t word;
  memcpy(&word, &both, sizeof(word));
  return word;
}

// Stores 16 bytes in one instruction, where the compiler makes four of an assignment.
__device__ inline void store_words(void* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
#ifdef SPILLWAY_CUDA_EMULATED
  *static_cast<uint4*>(to) = make_uint4(a, b, c, d);
#else
  asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
#endif
}

// Stores eight numbers side by side, their address a multiple of 16 bytes or not.
template <class T, bool kAligned>
__device__ void store_eight(const float (&from)[kEach], T* to) {
  if constexpr (!kAligned) {
    SPILLWAY_UNROLL
    for (int i = 0; i < kEach; ++i) to[i] = narrow<T>(from[i]);
  } else if constexpr (sizeof(T) == sizeof(float)) {
    auto* fours = reinterpret_cast<float4*>(to);
    fours[0] = make_float4(from[0], from[1], from[2], from[3]);
    fours[1] = make_float4(from[4], from[5], from[6], from[7]);
  } else {
    store_words(to, pair(T{}, from[0], from[1]), pair(T{}, from[2], from[3]),
                pair(T{}, from[4], from[5]), pair(T{}, from[6], from[7]));
  }
}

// A few lanes take a group: each reads words, gets the others' from them, and writes eight numbers,
// which lie side by side.
template <int kBits, int kGroup, class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    expand_kernel(const std::byte* from, int64_t row_bytes, int64_t columns, void* out,
                  int64_t out_stride) {
  using Lanes = GroupLanes<kBits, kGroup>;
  constexpr int kLanes = Lanes::kLanes;
  constexpr unsigned kAtOnce = kThreads / kLanes;  // Groups
  const std::byte* row = from + blockIdx.x * row_bytes;
  T* to = static_cast<T*>(out) + blockIdx.x * out_stride;
  const auto whole = static_cast<unsigned>(columns / kGroup);
  const unsigned lane = threadIdx.x % kLanes;
  // A warp's lanes iterate together, also those without a group.
  for (unsigned first = threadIdx.x / kWarp * (kWarp / kLanes); first < whole; first += kAtOnce) {
    const unsigned group = first + threadIdx.x % kWarp / kLanes;
    const bool there = group < whole;
    const std::byte* at = row + (there ? group : first) * Groups<kBits, kGroup>::kBytes;
    const auto* shared = reinterpret_cast<const __half*>(at);
    const auto* in = reinterpret_cast<const uint32_t*>(at + 4);
    uint32_t words[Lanes::kHeld];
    SPILLWAY_UNROLL
    for (int i = 0; i < Lanes::kHeld; ++i) words[i] = in[lane + i * kLanes];
    float eight[kEach];
    Lanes::expand(words, widen(shared[0]), widen(shared[1]), eight);
    if (there) store_eight<T, kAligned>(eight, to + group * kGroup + lane * kEach);
  }
  // A short last group has fewer words.
  for (int64_t i = whole * kGroup + threadIdx.x; i < columns; i += kThreads) {
    to[i] = narrow<T>(quantized_row_value<kBits, kGroup>(row, i, columns));
  }
}

// Rows with one scale: a thread writes eight numbers.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    expand_q8_kernel(const std::byte* from, int64_t row_bytes, int64_t columns, void* out,
                     int64_t out_stride) {
  const std::byte* row = from + blockIdx.x * row_bytes;
  T* to = static_cast<T*>(out) + blockIdx.x * out_stride;
  const float scale = *reinterpret_cast<const float*>(row);
  const auto* words = reinterpret_cast<const uint32_t*>(row + sizeof(float));
  const int64_t whole = columns / kEach;
  for (int64_t i = threadIdx.x; i < whole; i += kThreads) {
    const uint32_t two[2] = {words[2 * i], words[2 * i + 1]};
    float eight[kEach];
    SPILLWAY_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const auto code = static_cast<int8_t>(two[j / 4] >> (8 * (j % 4)) & 255u);
      eight[j] = static_cast<float>(code) * scale;
    }
    store_eight<T, kAligned>(eight, to + i * kEach);
  }
  for (int64_t i = whole * kEach + threadIdx.x; i < columns; i += kThreads) {
    to[i] = narrow<T>(q8_row_value(row, i));
  }
}

}  // namespace

void expand_slab(CudaContext& context, Format format, const WeightSlab& slab,
                 const MatrixView& out) {
  const auto row_bytes = static_cast<int64_t>(format_row_bytes(format, out.columns));
  const Grid grid{dim3(static_cast<unsigned>(slab.rows)), dim3(kThreads)};
  const bool aligned = reinterpret_cast<uintptr_t>(out.data) % 16 == 0 &&
                       out.stride * static_cast<int64_t>(dtype_bytes(out.dtype)) % 16 == 0;
  const auto run = [&](auto kernel) {
    launch(context.stream(), grid, kernel, slab.data, row_bytes, out.columns,
           static_cast<void*>(out.data), out.stride);
  };
  if (format == Format::kQ8) {
    const auto choose = [&]<class T>(T) {
      aligned ? run(expand_q8_kernel<T, true>) : run(expand_q8_kernel<T, false>);
    };
    if (out.dtype == DType::kF32) choose(float{});
    if (out.dtype == DType::kF16) choose(__half{});
    if (out.dtype == DType::kBF16) choose(__nv_bfloat16{});
    return;
  }
  with_groups(format, [&](auto bits, auto group) {
    const auto choose = [&]<class T>(T) {
      constexpr int kBits = decltype(bits)::value, kGroup = decltype(group)::value;
      aligned ? run(expand_kernel<kBits, kGroup, T, true>)
              : run(expand_kernel<kBits, kGroup, T, false>);
    };
    if (out.dtype == DType::kF32) choose(float{});
    if (out.dtype == DType::kF16) choose(__half{});
    if (out.dtype == DType::kBF16) choose(__nv_bfloat16{});
  });
}

void run(CudaContext& context, const ExpandArgs& args) {
  if (!context.ready()) return;
  int64_t first = 0;
  for (const WeightSlab& slab : args.from.slabs) {
    expand_slab(context, args.from.format, slab, args.out.slice_rows(first, slab.rows));
    first += slab.rows;
  }
  context.check_launch("expanding quantised weights");
}

}  // namespace spillway::cuda
