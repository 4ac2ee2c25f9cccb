// Fills the memory of a model's slabs at start-up, on several threads: from the model file, past
// the page cache and verified, repacked where the device wants another layout; or with bytes that
// the caller writes. Slabs in a discrete device's memory go through a host buffer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "offload/model_file/model_file.h"

namespace spillway {

// Called from loading threads, serialised, with bytes done and total bytes.
using LoadProgress = std::function<void(uint64_t done, uint64_t total)>;

// The destination of a slab's bytes. Null: the slab is not resident.
struct SlabLocation {
  std::byte* memory = nullptr;
  uint64_t bytes = 0;             // slab_memory_bytes()
  bool in_device_memory = false;  // The host cannot access it
};

// Writes slabs to their destinations; one per loading thread.
class SlabWriter {
 public:
  explicit SlabWriter(Device& device) : device_(device) {}

  // Host memory to fill with the slab's bytes; then call finish().
  Result<std::span<std::byte>> begin(const SlabLocation& location);
  Status finish();

 private:
  Device& device_;
  SlabLocation location_;
  Buffer buffer_;
  std::unique_ptr<Stream> stream_;
};

// Runs body(slab, writer) for every slab of `which` on several threads; the first error stops the
// others.
Status for_each_slab(Device& device, const ModelFileTable& table,
                     const std::vector<uint32_t>& which, const LoadProgress& progress,
                     const std::function<Status(uint32_t, SlabWriter&)>& body);

// Bytes of a slab in memory with its matrix in `layout`: at least its bytes in the file.
uint64_t slab_memory_bytes(const ModelFileTable& table, uint32_t slab, MatrixLayout layout);

// Reads the slabs of `which` into locations[slab], matrices in `layout`. Sets *repacked when a
// matrix had another layout. kIoError, kCorruption: name file, slab and bytes.
Status load_slabs(Device& device, const ModelFile& file, const File& direct,
                  const std::vector<uint32_t>& which, const std::vector<SlabLocation>& locations,
                  MatrixLayout layout, const LoadProgress& progress, bool* repacked);

// Reads a slab past the page cache, where `direct` is open, and verifies it; on an error it is read
// once more by ModelFile::read_slab(), whose errors name file, slab and bytes. `target`: aligned to
// kFileAlignment.
Status read_verified(const ModelFile& file, const File& direct, uint32_t slab,
                     std::span<std::byte> target);

// The tensor that a slab belongs to; null for slabs of vectors.
const TensorInfo* matrix_tensor_of(const ModelFileTable& table, uint32_t slab);

// A second descriptor that bypasses the page cache, where the file system supports that.
File open_direct(const ModelFile& file);

}  // namespace spillway
