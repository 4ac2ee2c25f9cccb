// PinnedMemory: host memory that the device's copy engines reach: huge pages, so that the CPU reads
// it at full speed, prefaulted by all cores at once and then registered with the driver. The
// driver's own allocation does neither, and takes several times as long.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/status.h"

namespace spillway::cuda {

// One registration ends where an address is a multiple of this: drivers refuse very large ones. A
// copy must not lie across its end.
#ifdef SPILLWAY_CUDA_EMULATED
constexpr size_t kRegisteredBytesMax = size_t{1} << 20;
#else
constexpr size_t kRegisteredBytesMax = size_t{64} << 30;
#endif

// Number of the bytes from `at` on that lie before the end of their registration.
inline size_t before_registration_ends(const void* at, size_t bytes) {
  const size_t left = kRegisteredBytesMax - reinterpret_cast<uintptr_t>(at) % kRegisteredBytesMax;
  return bytes < left ? bytes : left;
}

class PinnedMemory {
 public:
  // Zeroed memory, aligned to pages. kCapacity: the host has too little free memory.
  static Result<PinnedMemory> allocate(size_t bytes);

  std::byte* data() const { return data_; }

  // REQUIRES: no copy uses it any more. data() is invalid afterwards.
  void free();

 private:
  PinnedMemory(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  Status register_all();
  void unregister(size_t bytes);

  std::byte* data_;
  size_t bytes_;
  bool registered_ = false;  // Else allocated by the driver
};

}  // namespace spillway::cuda
