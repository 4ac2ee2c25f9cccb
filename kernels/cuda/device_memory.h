// What of a device's memory this process takes by cudaMalloc, counted, and kept within a limit.
// What the driver and the libraries take for themselves (the context, kernels' code, cuBLAS) is not
// in it. Owned by the CUDA device; any thread, whose device it is.
#pragma once

#include <cstddef>
#include <mutex>

#include "kernels/base/status.h"

namespace spillway::cuda {

class DeviceMemory {
 public:
  // kCapacity: the limit or the device has no room; says for how much. `what` is for the message.
  Status allocate(void** memory, size_t bytes, const char* what);

  // Of memory from allocate(), or null.
  void free(void* memory, size_t bytes);

  // For allocations from now on; 0: none. The peak begins anew.
  void limit(size_t bytes);

  size_t taken() const;
  size_t peak() const;

 private:
  Status take(size_t bytes, const char* what);

  mutable std::mutex mutex_;
  size_t taken_ = 0, peak_ = 0, limit_ = 0;  // Bytes
};

}  // namespace spillway::cuda
