// The execution model of a CUDA device in plain C++, so that the sources of kernels/cuda run where
// there is no device: blocks one after another in a shuffled order; the threads of a block as
// fibers that switch at barriers and warp collectives only, each time in a shuffled order: in some
// blocks all keep step, in others one warp runs as far as it gets while the rest stand. What it
// finds: wrong indices, accesses outside of buffers and of shared memory (under ASan), missing
// barriers (some order of threads reads what is not there yet), divergent barriers (an abort that
// says where). What it says nothing about: speed.
//
// The build includes this file in front of every such source and defines SPILLWAY_CUDA_EMULATED.
// The toolkit's own headers come first, then their markers get the meaning they need here.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <array>
#include <bit>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <set>
#include <source_location>
#include <string>
#include <type_traits>

namespace spillway::emulation {

// Which of all runs this is: SPILLWAY_EMULATION_SEED of the environment, 0 without.
uint64_t run_seed();

// `seed` of this run: what a generator of the emulation starts from.
inline uint64_t seed_of_run(uint64_t seed) {
  return seed + run_seed() * 1'000'003;
}

// Of the shuffles from now on, in this run.
void set_seed(uint64_t seed);

// A call of __syncthreads() or __syncwarp() in the source of a kernel.
struct Barrier {
  std::string file;  // Without its folder
  unsigned line = 0;
  auto operator<=>(const Barrier&) const = default;
};

// Where `run` comes to one.
std::set<Barrier> barriers_of(const std::function<void()>& run);

// From now on this one does nothing: for the test that a missing barrier is found.
void drop_barrier(const Barrier& barrier);

// Queues a kernel on a stream of the fake runtime (tests/support/fake_cudart.cc). A launch that a
// device would refuse leaves its error to cudaGetLastError().
void launch(cudaStream_t stream, dim3 blocks, dim3 threads, size_t shared_bytes,
            std::function<void()> kernel);

// Runs a kernel now.
void run_grid(dim3 blocks, dim3 threads, size_t shared_bytes, const std::function<void()>& kernel);

// Of the thread that runs.
struct Here {
  const dim3 *thread = nullptr, *block = nullptr, *size = nullptr, *grid = nullptr;
};
inline Here here;
inline const dim3& thread_index() {
  return *here.thread;
}
inline const dim3& block_index() {
  return *here.block;
}
inline const dim3& block_size() {
  return *here.size;
}
inline const dim3& grid_size() {
  return *here.grid;
}
void* shared_memory();  // Dynamic; fresh for every block, filled with NaN

// A barrier's call comes first; it says whether there is one.
bool reaches_barrier(const std::source_location& call);
void sync_threads();

// Gives `mine` to the lanes of `mask`, which all call this, and returns lane `from`'s.
constexpr size_t kExchangeBytes = 24;
void exchange(unsigned mask, const void* mine, void* theirs, size_t bytes, unsigned from);
unsigned ballot(unsigned mask, bool predicate);
// The same for all lanes' at once: lane i's are at theirs + i * bytes.
void gather(unsigned mask, const void* mine, void* theirs, size_t bytes);

template <class T>
T exchange(unsigned mask, T mine, unsigned from) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kExchangeBytes);
  T theirs;
  exchange(mask, &mine, &theirs, sizeof(T), from);
  return theirs;
}

template <class T>
std::array<T, 32> gather(unsigned mask, T mine) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kExchangeBytes);
  std::array<T, 32> theirs;
  gather(mask, &mine, theirs.data(), sizeof(T));
  return theirs;
}

inline unsigned lane() {
  return thread_index().x % 32;
}

}  // namespace spillway::emulation

#undef __shared__
#undef __global__
#undef __device__
#undef __launch_bounds__
#undef __grid_constant__
// Blocks run one after another, so what is static is shared by the threads of a block. In a section
// of its own it is NaN, or -1, at a block's start; but AddressSanitizer watches only the bounds of
// what lies where the compiler puts it.
#ifdef __SANITIZE_ADDRESS__
#define __shared__ static
#else
#define __shared__ static __attribute__((section("spillway_shared")))
#endif
#define __global__
#define __device__
#define __launch_bounds__(...)
#define __grid_constant__

#define threadIdx (::spillway::emulation::thread_index())
#define blockIdx (::spillway::emulation::block_index())
#define blockDim (::spillway::emulation::block_size())
#define gridDim (::spillway::emulation::grid_size())

inline void __syncthreads(std::source_location call = std::source_location::current()) {
  if (::spillway::emulation::reaches_barrier(call)) ::spillway::emulation::sync_threads();
}
inline void __syncwarp(unsigned mask = 0xffffffffu,
                       std::source_location call = std::source_location::current()) {
  if (::spillway::emulation::reaches_barrier(call)) ::spillway::emulation::ballot(mask, true);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  return ::spillway::emulation::exchange(mask, value, static_cast<unsigned>(from) % 32);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int step) {
  return ::spillway::emulation::exchange(
      mask, value, ::spillway::emulation::lane() ^ static_cast<unsigned>(step));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned step) {
  const unsigned lane = ::spillway::emulation::lane();
  return ::spillway::emulation::exchange(mask, value, lane + step < 32 ? lane + step : lane);
}
inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  return ::spillway::emulation::ballot(mask, predicate);
}
inline bool __any_sync(unsigned mask, bool predicate) {
  return ::spillway::emulation::ballot(mask, predicate) != 0;
}
template <class T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at += value;
  return before;
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
// Byte i of the result is the one that the i'th four bits of the selector name, of both words.
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t both = uint64_t{high} << 32 | low;
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) {
    bytes |= static_cast<uint32_t>(both >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return bytes;
}
inline uint32_t __float_as_uint(float x) {
  return std::bit_cast<uint32_t>(x);
}
inline float __uint_as_float(uint32_t x) {
  return std::bit_cast<float>(x);
}
inline float __expf(float x) {
  return expf(x);
}
inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
