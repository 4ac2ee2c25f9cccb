#include "kernels/cuda/device_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/units.h"
#include "kernels/cuda/cuda_context.h"

namespace spillway::cuda {

// Before the device is asked, so that threads cannot pass the limit together.
Status DeviceMemory::take(size_t bytes, const char* what) {
  const std::lock_guard lock(mutex_);
  if (limit_ > 0 && bytes > limit_ - std::min(limit_, taken_)) {
    return {Code::kCapacity, std::string("CUDA, ") + what + ": " + format_bytes(bytes) +
                                 " more do not fit the device's budget, " + format_bytes(taken_) +
                                 " of " + format_bytes(limit_) +
                                 " are taken; raise --device-memory or lower --block"};
  }
  taken_ += bytes;
  peak_ = std::max(peak_, taken_);
  return {};
}

Status DeviceMemory::allocate(void** memory, size_t bytes, const char* what) {
  SPILLWAY_RETURN_IF_ERROR(take(bytes, what));
  const cudaError_t error = cudaMalloc(memory, bytes);
  if (error == cudaSuccess) return {};
  const std::lock_guard lock(mutex_);
  taken_ -= bytes;
  const Status status = status_of(error, what).at(std::to_string(bytes) + " bytes");
  if (status.code() != Code::kCapacity) return status;
  return {Code::kCapacity, std::string(status.message()) +
                               "; a smaller --device-memory leaves more for libraries and others"};
}

void DeviceMemory::free(void* memory, size_t bytes) {
  if (memory == nullptr) return;
  cudaFree(memory);
  const std::lock_guard lock(mutex_);
  SPILLWAY_CHECK(bytes <= taken_);
  taken_ -= bytes;
}

void DeviceMemory::limit(size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  peak_ = taken_;
}

size_t DeviceMemory::taken() const {
  const std::lock_guard lock(mutex_);
  return taken_;
}

size_t DeviceMemory::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

}  // namespace spillway::cuda
