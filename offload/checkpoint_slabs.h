// The slabs of a model read from its safetensors files where they lie, instead of from a packed
// file: no second copy on the disk. Possible for checkpoints whose matrices are all bf16, or all
// f16, and are computed with as they are: the numbers are the same, only their order differs. So a
// slab's rows are read into the slab's own memory and put in order there, with the bytes that a
// packed file would have.
//
// The rows of a slab lie in one or more places of the files (query, key and value are one matrix
// here), at any byte. Direct I/O reads whole sectors around each, so a slab's memory is larger than
// the slab by two sectors a place, and what is read lies at its end: panel by panel from the first
// on, no row is overwritten before it has been used.
//
// Thread rule: const after open, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/format.h"
#include "kernels/base/status.h"
#include "kernels/weight_layout.h"
#include "offload/convert/checkpoint.h"
#include "offload/convert/weight_map.h"
#include "offload/io/aligned_bytes.h"
#include "offload/io/file.h"
#include "offload/model_file/model_file.h"
#include "offload/slab_source.h"

namespace spillway {

struct CheckpointSlabsOptions {
  std::optional<Format> format;                              // None: the checkpoint's own
  bool bf16_for_f16 = false;                                 // As in ConvertOptions, like `layout`
  std::function<MatrixLayout(Format)> layout;                // Not empty
  std::function<Status(const ModelShape&)> accepts;          // As in ModelSourceOptions
  std::function<Status(const std::string&)> accepts_source;  // Likewise
  // Of several ranks (kernels/base/rank_shape.h) the slabs of this one.
  int64_t rank = 0, ranks = 1;
};

class CheckpointSlabs final : public SlabSource {
 public:
  // `directory`: a model directory. Reads headers, no weights. kInvalidArgument: it cannot be
  // streamed as it is; the message says why, and what to do. Blocks.
  static Result<std::shared_ptr<const CheckpointSlabs>> open(const std::string& directory,
                                                             const CheckpointSlabsOptions& options);

  const ModelFileTable& table() const override { return table_; }
  const std::string& largest_file() const override;
  std::vector<SlabRead> reads(uint32_t slab) const override;

  // kCorruption: a file has changed since open(). Takes the time of copying the slab twice, and a
  // lock.
  Status arrange(uint32_t slab, std::span<std::byte> memory, bool compare) const override;
  Status load(uint32_t slab, std::span<std::byte> memory) const override;

 private:
  // Rows, or numbers of a vector, that lie together in a file, and their place in the slab's
  // memory before they are arranged.
  struct Run {
    uint32_t file = 0;
    uint64_t offset = 0, bytes = 0, at = 0;
  };
  // A weight, or some of its rows, and the runs [first, last) of the slab that hold it.
  struct Piece {
    size_t weight = 0;
    int64_t rows = 0;
    size_t first = 0, last = 0;
  };
  struct Slab {
    std::vector<Run> runs;
    std::vector<Piece> pieces;
  };
  struct Shard {
    File direct, buffered;
    FileStamp stamp;
  };

  CheckpointSlabs(Checkpoint checkpoint, WeightMap map, ModelFileTable table)
      : checkpoint_(std::move(checkpoint)), map_(std::move(map)), table_(std::move(table)) {}
  Status open_shards();
  void list_runs();
  void add_runs(const Piece& piece, int64_t first_row, Slab& slab) const;
  void place(Slab& slab, SlabInfo& info) const;
  Status check_unchanged(const Slab& slab) const;
  void arrange_vector(const Slab& slab, const Piece& piece, std::span<std::byte> memory) const;
  void arrange_rows(const Slab& slab, const Piece& piece, std::span<std::byte> memory) const;
  void arrange_panels(const Slab& slab, const Piece& piece, std::span<std::byte> memory) const;

  const Checkpoint checkpoint_;
  const WeightMap map_;
  ModelFileTable table_;
  std::vector<Shard> shards_;  // By the checkpoint's files
  std::vector<Slab> slabs_;
  mutable std::mutex scratch_mutex_;
  mutable AlignedBytes scratch_;  // A panel's rows, or a vector
};

}  // namespace spillway
