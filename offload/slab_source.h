// SlabSource: slabs that are made of parts of files, instead of lying in a packed file as they are
// used: a checkpoint's tensors (checkpoint_slabs.h), or a rank's rows of a packed file's
// (rank_slabs.h). What is read goes to the end of a slab's memory, which is larger than the slab,
// and is put in order there.
//
// Thread rule: const, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "offload/io/file.h"
#include "offload/model_file/model_file.h"

namespace spillway {

// One read of a slab: `bytes` bytes of the file from `offset` on, to byte `at` of its memory.
struct SlabRead {
  const File* file = nullptr;
  const File* buffered = nullptr;  // The same, for memory that does not suit direct I/O
  uint64_t offset = 0, bytes = 0, at = 0;
};

class SlabSource {
 public:
  virtual ~SlabSource() = default;

  // Of the model, as of a packed file of it; SlabInfo::bytes are those of a slab's memory, its
  // offset and checksum mean nothing.
  virtual const ModelFileTable& table() const = 0;

  // The largest weight file, for those who measure the disk.
  virtual const std::string& largest_file() const = 0;

  // The reads that fill a slab's memory, which is kFileAlignment-aligned; they may be done in any
  // order. Reads of whole sectors are of files that are open for direct I/O where the file system
  // has that.
  virtual std::vector<SlabRead> reads(uint32_t slab) const = 0;

  // Puts what was read in order. kCorruption: the files are not what they were; `compare`: where
  // the source can tell, by comparing all of the slab. May read it again, and block.
  virtual Status arrange(uint32_t slab, std::span<std::byte> memory, bool compare) const = 0;

  // Reads and arranges a slab. Blocks.
  virtual Status load(uint32_t slab, std::span<std::byte> memory) const = 0;

  // Whether arrange() can compare a slab with what load() has verified; then load() comes first.
  virtual bool verifies() const { return false; }
};

}  // namespace spillway
