// A checkpoint: the tensors of all its weight files. Reads model.safetensors or its shards of a
// directory, else pytorch_model.bin or its shards; never falls back from a damaged file to another.
// A path that ends in .gguf is a GGUF file, or the first of its split files; its tensors have the
// names that Hugging Face gives them.
// Nothing here knows what the tensors mean. Thread rule: const after open, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/byte_source.h"
#include "offload/convert/stored_tensor.h"

namespace spillway {

struct CheckpointOptions {
  bool lenient_header = false;  // safetensors_reader.h
};

// A tensor and the file it lies in.
struct CheckpointTensor {
  StoredTensor stored;  // `record` counts over all files.
  uint32_t file = 0;
};

// A byte range whose CRC32 the checkpoint itself carries.
struct CheckpointRecord {
  uint32_t file = 0;
  std::string name;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t crc = 0;
};

class Checkpoint {
 public:
  // Opens every weight file and reads all headers; no weights yet. Errors name file, tensor and
  // reason, and the next step where there is one. Blocks.
  static Result<Checkpoint> open(const std::string& path, const CheckpointOptions& options = {});

  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  const CheckpointTensor* find(std::string_view name) const;  // Null: there is none.
  const std::string& file_name(uint32_t file) const { return files_[file]->name(); }
  size_t file_count() const { return files_.size(); }
  uint64_t tensor_bytes() const;

  // The formats whose blocks are expanded when they are read, by tensors: "Q4_1 and Q8_0". Empty:
  // all tensors are plain numbers.
  const std::string& block_formats() const { return block_formats_; }

  // Notes for the user, such as ignored files.
  const std::vector<std::string>& notes() const { return notes_; }

  // Fills `target` from byte `offset` of the tensor on; blocks of a quantised format are expanded.
  // Blocks.
  // REQUIRES: the range lies in the tensor.
  Status read(const CheckpointTensor& tensor, uint64_t offset, std::span<std::byte> target) const;

  // Fills `target` with whole rows of a tensor's blocks as the file holds them, from row
  // `first_row` on. Blocks. REQUIRES: the tensor has blocks (StoredTensor::blocks) and two
  // dimensions, and these rows.
  Status read_block_rows(const CheckpointTensor& tensor, int64_t first_row,
                         std::span<std::byte> target) const;

  const std::vector<CheckpointRecord>& records() const { return records_; }

  // Reads the whole record and compares its checksum: kCorruption. Blocks.
  Status verify(const CheckpointRecord& record) const;

  // kCorruption when a weight file changed since open().
  Status check_unchanged() const;

 private:
  Checkpoint() = default;
  friend class CheckpointOpener;

  std::vector<std::unique_ptr<ByteSource>> files_;
  std::vector<CheckpointTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;  // Views into tensors_.
  std::vector<CheckpointRecord> records_;
  std::vector<std::string> notes_;
  std::string block_formats_;
};

// An error when `text` is a Git-LFS pointer, the placeholder of a large file that was not
// downloaded.
Status refuse_lfs_pointer(std::string_view text, std::string_view path);

}  // namespace spillway
