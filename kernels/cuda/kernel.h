// Helpers that our own kernels are written with. The same source is compiled twice: by nvcc for the
// device, and as plain C++ for the tests, where tests/support/cuda_emulation.h comes first (the
// build sees to that) and stands for the device: so every kernel runs in every test run, under the
// sanitizers and with the order of its threads shuffled.
//
// Rules that make this work: kernels are launched by launch() alone; dynamic shared memory comes
// from dynamic_shared(); of the device's intrinsics only those that the emulation has are used.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace spillway::cuda {

constexpr int kWarp = 32;

// Shared memory of a block, dynamic and static, that every device gives by default: for more a
// kernel would need cudaFuncSetAttribute(), and Turing's limit is 64 KiB.
constexpr size_t kSharedBytesMax = size_t{48} << 10;

struct Grid {
  dim3 blocks;              // In y and z at most 65,535
  dim3 threads;             // At most 1,024
  size_t shared_bytes = 0;  // Dynamic
};

#ifdef SPILLWAY_CUDA_EMULATED

template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, const Grid& grid, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  emulation::launch(stream, grid.blocks, grid.threads, grid.shared_bytes,
                    [=] { kernel(arguments...); });
}

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(emulation::shared_memory());
}

// Unrolls the next loop, so that arrays that it indexes stay in registers.
#define SPILLWAY_UNROLL
// Keeps the next loop as it is: for what is rarely run.
#define SPILLWAY_NO_UNROLL

#else

#define SPILLWAY_UNROLL _Pragma("unroll")
#define SPILLWAY_NO_UNROLL _Pragma("unroll 1")

// Queues the kernel; an error stays with the runtime until cudaGetLastError().
template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, const Grid& grid, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  // clang-format off
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(arguments...);
  // clang-format on
}

template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char memory[];
  return reinterpret_cast<T*>(memory);
}

#endif

// Conversion of numbers of any format to float32 and back.
__device__ inline float widen(float x) {
  return x;
}
__device__ inline float widen(__half x) {
  return __half2float(x);
}
__device__ inline float widen(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <class T>
__device__ T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline __half narrow<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Sum and maximum over all lanes of a warp; every lane gets the result.
__device__ inline float warp_sum(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  }
  return x;
}

// Sum over all threads of a block, whose number is a multiple of 32; every thread gets the result.
// `scratch` is shared, 32 floats, and free again when the call returns.
__device__ inline float block_sum(float x, float* scratch) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned warps = blockDim.x / kWarp;
  x = warp_sum(x);
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = warp_sum(lane < warps ? scratch[lane] : 0.0f);
  __syncthreads();
  return x;
}

}  // namespace spillway::cuda
