// What of a device's memory this process takes, counted, and kept within a limit: by cudaMalloc,
// and, for what grows while the device works, from a pool of the device in the order of a stream.
// What the driver and the libraries take for themselves (the context, kernels' code, cuBLAS) is not
// in it. Owned by the CUDA device; any thread, whose device it is.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <mutex>

#include "kernels/base/status.h"

namespace spillway::cuda {

class DeviceMemory {
 public:
  explicit DeviceMemory(int device) : device_(device) {}
  ~DeviceMemory();  // REQUIRES: all has come back.
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // kCapacity: the limit or the device has no room; says for how much. `what` is for the message.
  Status allocate(void** memory, size_t bytes, const char* what);

  // Of memory from allocate(), or null.
  void free(void* memory, size_t bytes);

  // Memory of a stream: for the work that it is given between allocate_for() and free_of().
  struct Ordered {
    void* at = nullptr;
    size_t bytes = 0;
    bool pooled = false;  // Else of allocate()
  };

  // Does not wait for the stream, but where the device has no pools or the room is what the stream
  // gave back and still uses. Errors as of allocate().
  Status allocate_for(cudaStream_t stream, Ordered* memory, size_t bytes, const char* what);

  // The stream's later work does not use it. Waits for the stream where it is not pooled.
  void free_of(cudaStream_t stream, const Ordered& memory);

  // For allocations from now on; 0: none. The peak begins anew.
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
  cudaMemPool_t pool_ = nullptr;             // Made when it is first asked for
  bool no_pool_ = false;                     // The device has none.
};

}  // namespace spillway::cuda
