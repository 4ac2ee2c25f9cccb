#include "kernels/cuda/pinned_memory.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "kernels/base/units.h"
#include "kernels/cuda/cuda_context.h"

namespace spillway::cuda {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kTouchBytes = size_t{32} << 20;  // Prefaulted by one core at a time

Status no_room(size_t bytes) {
  return {Code::kCapacity, "the host has no room for " + format_bytes(bytes) +
                               " of pinned memory; a smaller --host-memory takes less"};
}

// Prefaults fresh pages, which are zero. False: too little free memory.
bool prefault(std::byte* memory, size_t bytes) {
  std::atomic<bool> room = true;
  const size_t pieces = (bytes + kTouchBytes - 1) / kTouchBytes;
  tbb::parallel_for(size_t{0}, pieces, [&](size_t piece) {
    std::byte* const at = memory + piece * kTouchBytes;
    const size_t count = std::min(kTouchBytes, bytes - piece * kTouchBytes);
    if (madvise(at, count, MADV_POPULATE_WRITE) == 0) return;
    if (errno == ENOMEM) room = false;
    // Linux before 5.14 does not know it.
    if (errno == EINVAL) std::memset(at, 0, count);
  });
  return room;
}

}  // namespace

Result<PinnedMemory> PinnedMemory::allocate(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return no_room(bytes);
  if (bytes >= kHugePage) madvise(data, bytes, MADV_HUGEPAGE);
  PinnedMemory memory(static_cast<std::byte*>(data), bytes);
  const bool room = prefault(memory.data_, bytes);
  if (room && memory.register_all().ok()) return memory;
  munmap(data, bytes);
  if (!room) return no_room(bytes);
  // If the driver registers nothing, its own allocation may still work.
  SPILLWAY_RETURN_IF_ERROR(
      status_of(cudaHostAlloc(&data, bytes, cudaHostAllocDefault), "pinned memory")
          .at(std::to_string(bytes) + " bytes"));
  std::memset(data, 0, bytes);
  memory.data_ = static_cast<std::byte*>(data);
  return memory;
}

Status PinnedMemory::register_all() {
  for (size_t done = 0, piece = 0; done < bytes_; done += piece) {
    piece = before_registration_ends(data_ + done, bytes_ - done);
    const cudaError_t error = cudaHostRegister(data_ + done, piece, cudaHostRegisterDefault);
    if (error == cudaSuccess) continue;
    unregister(done);
    return status_of(error, "registering host memory");
  }
  registered_ = true;
  return {};
}

// Unregisters the first `bytes` bytes, which are whole registrations.
void PinnedMemory::unregister(size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t piece = before_registration_ends(data_ + done, bytes - done);
    if (cudaHostUnregister(data_ + done) != cudaSuccess) forget_last_error();
    done += piece;
  }
}

void PinnedMemory::free() {
  if (registered_) {
    unregister(bytes_);
    munmap(data_, bytes_);
  } else if (cudaFreeHost(data_) != cudaSuccess) {
    forget_last_error();
  }
}

}  // namespace spillway::cuda
