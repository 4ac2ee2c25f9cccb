// What the parts of fake_cudart share: memory, streams, events. For tests/support/fake_*.cc alone.
// Whoever uses it holds the lock.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>

// The opaque types of the runtime.
struct CUstream_st {
  int device = 0;
  std::deque<std::function<bool()>> work;  // False: not yet, something else must run first.
};
struct CUevent_st {
  int device = 0;
  uint64_t recorded = 0, happened = 0;
  double at = 0;  // steady_seconds() of the latter
};

namespace spillway::fake_cudart {

constexpr int kDevices = 4;

// Any thread may call the runtime. Whoever waits does the work of all.
using Lock = std::lock_guard<std::recursive_mutex>;
std::recursive_mutex& mutex();

struct Allocation {
  size_t bytes = 0;
  int device = 0;
  bool there = true;  // Of a pool's: for the work that runs now
};
using Allocations = std::map<void*, Allocation>;

struct Fake {
  std::mt19937_64 random{1};
  bool eager = false;  // Work is done as soon as it is queued, mostly.
  std::set<cudaStream_t> streams;
  // That no other waits for
  CUstream_st default_streams[kDevices] = {{0, {}}, {1, {}}, {2, {}}, {3, {}}};
  std::set<cudaEvent_t> events;
  Allocations device, pinned;
  std::map<void*, size_t> registered;  // Bytes of the caller's own memory
  std::set<cudaMemPool_t> pools;
  bool has_pools = true;
  size_t pool_step = 4096;
  size_t context_bytes = 0;
  size_t device_bytes = 0, device_limit = size_t{1} << 40;
  int64_t copies_left = -1;
  uint64_t to_host_bytes = 0;
  uint64_t to_device_queued = 0;
  uint64_t waits = 0;
  uint64_t launches = 0;
  int major = 9, minor = 0;  // Compute capability
  cudaError_t lost = cudaSuccess;
};
Fake& fake();

// What a call that fails returns, and the thread's last error is.
cudaError_t failed(cudaError_t error);

// Stricter than the runtime, which minds when it launches and records: everything is used while its
// device is the calling thread's.
bool current(int device);

void queue(cudaStream_t stream, std::function<bool()> work);

// Garbage, counted. cudaErrorMemoryAllocation: there is no room.
cudaError_t take_device_memory(void** memory, size_t bytes);
void give_device_memory(void* memory);

// Whether work may use it from now on; garbage either way.
void set_there(void* memory, bool there);

// Of all pools, as every wait for the device does.
void release_unused();

}  // namespace spillway::fake_cudart
