// DeviceMemory: allocates device memory, counted and kept within a limit: by cudaMalloc and, for
// scratch that grows while the device works, from a stream-ordered pool. The memory that the driver
// and the libraries take (the context, kernels' code, cuBLAS) is not counted. Owned by the CUDA
// device; any thread, whose device it is.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <mutex>

#include "kernels/base/status.h"

namespace spillway::cuda {

class DeviceMemory {
 public:
  explicit DeviceMemory(int device) : device_(device) {}
  ~DeviceMemory();  // REQUIRES: all memory is freed.
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // kCapacity: beyond the limit or the device's free memory; the message has the size and `what`.
  Status allocate(void** memory, size_t bytes, const char* what);

  // Frees memory from allocate(), or null.
  void free(void* memory, size_t bytes);

  // Stream-ordered memory: for work queued between allocate_for() and free_of().
  struct Ordered {
    void* at = nullptr;
    size_t bytes = 0;
    bool pooled = false;  // Else from allocate()
  };

  // Waits for the stream only where the device has no pools, or the free memory is what the stream
  // has freed and still uses. Errors as in allocate().
  Status allocate_for(cudaStream_t stream, Ordered* memory, size_t bytes, const char* what);

  // Frees memory that later work of the stream must not use. Waits for the stream where it is not
  // pooled.
  void free_of(cudaStream_t stream, const Ordered& memory);

  // Limits allocations from now on; 0: no limit. Resets the peak.
  void limit(size_t bytes);

  size_t taken() const;
  size_t peak() const;

 private:
  bool fits(size_t bytes) const;
  size_t all() const;
  Status take(size_t bytes, const char* what);
  bool from_pool(cudaStream_t stream, Ordered* memory, size_t bytes);
  bool open_pool();
  void trim();

  const int device_;
  mutable std::mutex mutex_;
  size_t taken_ = 0, peak_ = 0, limit_ = 0;  // Bytes; taken_ without the pool's
  cudaMemPool_t pool_ = nullptr;             // Made at the first use
  bool no_pool_ = false;                     // The device has no pools.
};

}  // namespace spillway::cuda
