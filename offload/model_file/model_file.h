// The packed model file (.spill, version 1), which `convert` writes and the weight store reads.
//
//   superblock  4096 bytes, at 0 and again at 4096: magic "SPILLWAY", version, file id (16 random
//               bytes), offset, length and XXH3-64 of the table; XXH3-64 of the superblock itself
//   slabs       from 8192 on, back to back, each zero-padded to a multiple of 4096
//   table       JSON: shape, format, layout, provenance, tensors, slabs, names and sizes of the
//               embedded tokenizer files; then those files' bytes. 4096-aligned, ends the file
//
// A slab is the unit of placement, I/O and verification: a contiguous run of rows of one matrix or
// table (at most kSlabBytesMax, a multiple of 64 rows), or all vectors of one layer together. Its
// checksum is XXH3-64 over the padded bytes with seed = first 8 bytes of the file id XOR slab
// index, so a slab in the wrong place is as corrupt as a flipped bit.
//
// Writing is atomic: temporary name, data, fsync, superblocks, fsync, rename, fsync of the
// directory. A crash leaves the temporary file (OUTPUT.partial), which the next convert takes over.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/format.h"
#include "kernels/base/model_shape.h"
#include "kernels/base/quantized.h"
#include "kernels/base/status.h"
#include "kernels/base/weights.h"
#include "kernels/weight_layout.h"
#include "offload/io/file.h"

namespace spillway {

constexpr size_t kSlabBytesMax = size_t{8} << 20;
constexpr size_t kFileAlignment = 4096;

struct SlabInfo {
  uint64_t offset = 0;  // Into the file, a multiple of kFileAlignment
  uint64_t bytes = 0;   // Padded, a multiple of kFileAlignment.
  uint64_t checksum = 0;
  int64_t layer = -1;  // As in WeightSpec; -1 before and after the layers.
};

// The place of one weight: slabs [first_slab, first_slab + slab_count), each of `slab_rows` rows
// (the last may have fewer). Vectors: one slab, starting `offset_in_slab` bytes into it.
struct TensorInfo {
  WeightSpec spec;
  Format format = Format::kF32;  // Vectors are always kF32.
  MatrixLayout layout = MatrixLayout::kRows;
  bool hadamard = false;  // Columns are multiplied by Hadamard matrices (kernels/input_hadamard.h)
  uint32_t first_slab = 0;
  uint32_t slab_count = 0;
  int64_t slab_rows = 0;
  uint64_t offset_in_slab = 0;
  uint64_t nan_count = 0;  // Among the stored values; the writer counts them
  uint64_t inf_count = 0;
  QuantError quantization{};  // If quantised: against the checkpoint, measured by the converter

  int64_t rows_in_slab(uint32_t index) const;  // index < slab_count
  std::string name() const;                    // "layer 0 mlp_up_weight", for messages
};

struct ModelFileTable {
  std::array<uint8_t, 16> file_id{};
  ModelShape shape;
  Format format = Format::kF32;     // Format of matrices and tables, or of most of their bytes
  std::string source;               // Name and fingerprint of the checkpoint
  std::string origin;               // Its path when it was converted; empty: not told
  std::vector<TensorInfo> tensors;  // In the order of weight_specs(shape).
  std::vector<SlabInfo> slabs;      // In streaming order, which is the order in the file.
  std::vector<std::pair<std::string, std::string>> files;  // Tokenizer files: name, contents.

  uint64_t slab_seed(uint32_t slab) const;
  uint64_t weight_bytes() const;           // Sum over the slabs.
  bool mixed() const;                      // Whether matrices and tables differ in format
  bool in_named_format() const;            // Whether they are what --format gives (named_format())
  bool takes_int8() const;                 // Whether some matrix's format does
  std::string formats_text() const;        // "q4_1", "q4_1 and q8_1"
  std::vector<size_t> non_finite() const;  // Tensors with NaN or infinity, by index.
  QuantError quantization() const;         // Over all quantised tensors.
};

// Lays out tensors and slabs for a shape, for a writer to fill or dummy weights to allocate.
// Offsets count from 0; ModelFileWriter moves them behind the header. A matrix slab has as many
// panels of 64 rows as fit kSlabBytesMax, at least one; each layer begins with the slab of its
// vectors. `of_weights`, unless it is empty, has the format of each weight_specs(shape), vectors
// aside, instead of named_format(); all are quantised then, and so is `format`. REQUIRES: a valid
// shape; layout_holds(layout, format). `layout` is that of the matrices and not kRows, which tables
// have.
ModelFileTable plan_model_file(const ModelShape& shape, Format format, MatrixLayout layout,
                               std::span<const Format> of_weights = {});

// An open packed file. The table is verified; slabs are read on demand. Thread rule: const after
// open, any thread.
class ModelFile {
 public:
  // kCorruption when superblock or table do not verify, kInvalidArgument for an unknown version.
  static Result<ModelFile> open(const std::string& path);

  const ModelFileTable& table() const { return *table_; }
  const std::string& path() const { return file_.path(); }
  int fd() const { return file_.fd(); }  // Buffered; for streaming open another with O_DIRECT

  // Reads slab `index` into `target` (its bytes) and verifies it; one more try on a mismatch.
  // Blocks. Errors name file, slab and byte range.
  Status read_slab(uint32_t index, std::span<std::byte> target) const;

 private:
  ModelFile(File file, std::unique_ptr<const ModelFileTable> table)
      : file_(std::move(file)), table_(std::move(table)) {}

  File file_;
  std::unique_ptr<const ModelFileTable> table_;
};

// What a packed file takes on the disk, and what its place has.
struct PackedFileRoom {
  std::string path;    // With its symbolic links followed
  uint64_t bytes = 0;  // Of the finished file, rounded up by some digits a slab
  // Free there, with what an interrupted writer left and the next one takes over.
  uint64_t free_bytes = 0;
};

// Writes one packed file. Slabs may be written in any order, each once, from several threads.
class ModelFileWriter {
 public:
  // What create() would need for this planned table, and what `path` has. Writes nothing.
  // kInvalidArgument: no packed file can lie there.
  static Result<PackedFileRoom> room(const std::string& path, const ModelFileTable& table);

  // Takes the planned table; moves its slabs behind the header, fixes their offsets and generates a
  // random file id. kCapacity when the disk has too little space or another process writes this
  // file. An existing file at `path` stays as it is until finish().
  static Result<std::unique_ptr<ModelFileWriter>> create(const std::string& path,
                                                         ModelFileTable table);
  virtual ~ModelFileWriter() = default;  // Removes the temporary file unless finish() succeeded.

  virtual const ModelFileTable& table() const = 0;

  // `bytes` is the slab's padded size; from an address that is a multiple of kFileAlignment it is
  // written past the page cache. Computes the checksum and counts NaN and infinity (quantised: the
  // numbers in groups whose scale or minimum is NaN or infinite). Blocks.
  virtual Status write_slab(uint32_t index, std::span<const std::byte> bytes) = 0;

  // Stores the quantisation error of tensor `index` in the table. Call before finish(), from one
  // thread. REQUIRES: the tensor is quantised.
  virtual void set_quantization(size_t index, const QuantError& error) = 0;

  // Syncs and renames. REQUIRES: every slab has been written.
  virtual Status finish() = 0;
};

}  // namespace spillway
