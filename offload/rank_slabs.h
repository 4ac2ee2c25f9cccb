// The slabs of one of several ranks that share every layer of a model (kernels/base/rank_shape.h),
// read from the whole model's packed file: each matrix's rows that are the rank's lie in a few
// places of it, and only these are read, whatever the number of ranks.
//
// The file's checksums are of whole slabs. load() reads these and compares them; what it made of
// them is what arrange(), which a stream calls sweep after sweep, compares with, and where that
// differs it loads the slab again. Rows that do not
// begin or end with a panel of the file (weight_layout.h), or that the device wants in another
// layout, are packed anew each time, which takes a hundred times as long as moving them: that
// happens with tiny models, and with files made for another device.
//
// Thread rule: const after open, any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "offload/slab_source.h"

namespace spillway {

class RankSlabs final : public SlabSource {
 public:
  // `shape`: the file's, whole, or one with a lower limit of positions. `layout`: of the matrices,
  // as the device wants them. kInvalidArgument: the model cannot be divided so. Blocks.
  static Result<std::shared_ptr<const RankSlabs>> open(std::shared_ptr<const ModelFile> file,
                                                       const ModelShape& shape, int64_t rank,
                                                       int64_t ranks, MatrixLayout layout);

  const ModelFileTable& table() const override { return table_; }
  const std::string& largest_file() const override { return file_->path(); }
  std::vector<SlabRead> reads(uint32_t slab) const override;
  Status arrange(uint32_t slab, std::span<std::byte> memory, bool compare) const override;
  Status load(uint32_t slab, std::span<std::byte> memory) const override;
  bool verifies() const override { return true; }

 private:
  // Whole panels of one slab of the file that hold rows of one of the rank's.
  struct Run {
    uint32_t slab = 0;               // Of the file
    uint64_t offset = 0, bytes = 0;  // In that slab
    uint64_t at = 0;                 // In the memory of the rank's, before it is arranged
    int64_t skipped = 0, rows = 0;   // Of the panels' rows: before the rank's, and these
  };
  struct Slab {
    std::vector<Run> runs;
    size_t tensor = 0;     // Of the table; of vectors: the first of the layer
    bool vectors = false;  // One run: those of the whole layer
    bool moves = true;     // Whether the rows can be moved as they lie; else they are packed anew
  };

  RankSlabs(std::shared_ptr<const ModelFile> file, ModelFileTable table, const ModelShape& whole)
      : file_(std::move(file)), whole_(whole), table_(std::move(table)) {}
  Status open_files();
  void list_runs();
  void list_vectors(size_t tensor);
  void list_rows(size_t tensor);
  void add_run(const TensorInfo& of_file, int64_t first, int64_t rows, Slab& slab) const;
  void place(Slab& slab, SlabInfo& info) const;
  void make(uint32_t slab, std::span<std::byte> memory) const;
  void make_vectors(const Slab& slab, std::span<std::byte> memory) const;
  void pack_anew(const Slab& slab, uint32_t number, std::span<std::byte> memory) const;

  const std::shared_ptr<const ModelFile> file_;
  const ModelShape whole_;
  ModelFileTable table_;
  File direct_, buffered_;
  std::vector<Slab> slabs_;
  std::unique_ptr<std::atomic<uint64_t>[]> sums_;  // By slab, of load(); 0: not loaded
};

}  // namespace spillway
