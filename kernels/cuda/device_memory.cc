#include "kernels/cuda/device_memory.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/units.h"
#include "kernels/cuda/cuda_context.h"

namespace spillway::cuda {

DeviceMemory::~DeviceMemory() {
  SPILLWAY_CHECK(taken_ == 0);
  if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
}

// Counts the pool's reserved bytes, not the allocated ones: others cannot use the reserved bytes,
// and they exceed the allocated ones by rounding and by freed memory that is still in use.
size_t DeviceMemory::all() const {
  uint64_t pooled = 0;
  if (pool_ != nullptr &&
      cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &pooled) != cudaSuccess) {
    forget_last_error();
  }
  return taken_ + pooled;
}

bool DeviceMemory::fits(size_t bytes) const {
  return limit_ == 0 || bytes <= limit_ - std::min(limit_, all());
}

// Returns the pool's unused memory to the device.
void DeviceMemory::trim() {
  if (pool_ != nullptr && cudaMemPoolTrimTo(pool_, 0) != cudaSuccess) forget_last_error();
}

// Counts the bytes before the device allocates them, so that threads cannot pass the limit
// together.
Status DeviceMemory::take(size_t bytes, const char* what) {
  const std::lock_guard lock(mutex_);
  if (!fits(bytes)) trim();
  if (!fits(bytes)) {
    return {Code::kCapacity, std::string("CUDA, ") + what + ": " + format_bytes(bytes) +
                                 " more do not fit the device's budget, " + format_bytes(all()) +
                                 " of " + format_bytes(limit_) +
                                 " are taken; raise --device-memory or lower --block"};
  }
  taken_ += bytes;
  peak_ = std::max(peak_, all());
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

// The pool keeps no unused memory beyond the next wait for the device: its release threshold is the
// runtime's default, 0.
bool DeviceMemory::open_pool() {
  if (pool_ != nullptr || no_pool_) return !no_pool_;
  int supported = 0;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device_;
  cudaError_t error = cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device_);
  if (error == cudaSuccess && supported != 0) error = cudaMemPoolCreate(&pool_, &properties);
  if (error != cudaSuccess) forget_last_error();
  no_pool_ = pool_ == nullptr;
  return !no_pool_;
}

// False: too little free memory without waiting, or no pool.
bool DeviceMemory::from_pool(cudaStream_t stream, Ordered* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!open_pool() || !fits(bytes)) return false;
  void* at = nullptr;
  if (cudaMallocFromPoolAsync(&at, bytes, pool_, stream) != cudaSuccess) {
    forget_last_error();
    return false;
  }
  const size_t now = all();
  if (limit_ > 0 && now > limit_) {
    // The pool's rounding is known only now.
    if (cudaFreeAsync(at, stream) != cudaSuccess) forget_last_error();
    return false;
  }
  peak_ = std::max(peak_, now);
  *memory = {at, bytes, true};
  return true;
}

Status DeviceMemory::allocate_for(cudaStream_t stream, Ordered* memory, size_t bytes,
                                  const char* what) {
  if (from_pool(stream, memory, bytes)) return {};
  SPILLWAY_RETURN_IF_ERROR(status_of(cudaStreamSynchronize(stream), "the device"));
  {
    const std::lock_guard lock(mutex_);
    trim();
  }
  void* at = nullptr;
  SPILLWAY_RETURN_IF_ERROR(allocate(&at, bytes, what));
  *memory = {at, bytes, false};
  return {};
}

void DeviceMemory::free_of(cudaStream_t stream, const Ordered& memory) {
  if (memory.at == nullptr) return;
  if (memory.pooled) {
    if (cudaFreeAsync(memory.at, stream) != cudaSuccess) forget_last_error();
    return;
  }
  if (cudaStreamSynchronize(stream) != cudaSuccess) forget_last_error();
  free(memory.at, memory.bytes);
}

void DeviceMemory::limit(size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  peak_ = all();
}

size_t DeviceMemory::taken() const {
  const std::lock_guard lock(mutex_);
  return all();
}

size_t DeviceMemory::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

}  // namespace spillway::cuda
