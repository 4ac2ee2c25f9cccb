#include "offload/convert/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <map>
#include <optional>

#include "kernels/base/quote.h"
#include "offload/convert/gguf_blocks.h"
#include "offload/convert/gguf_checkpoint.h"
#include "offload/convert/safetensors_reader.h"
#include "offload/convert/shard_index.h"
#include "offload/convert/torch_reader.h"

namespace spillway {

namespace {

// One form of a directory's weights; candidates are in order of preference.
struct Candidate {
  const char* file;
  const char* extension;
  bool index;
};

constexpr Candidate kCandidates[] = {
    {"model.safetensors", ".safetensors", false},
    {"model.safetensors.index.json", ".safetensors", true},
    {"pytorch_model.bin", ".bin", false},
    {"pytorch_model.bin.index.json", ".bin", true},
};

constexpr size_t kVerifyBytes = size_t{1} << 20;

bool exists(const File& directory, const char* name) {
  struct stat info {};
  return ::fstatat(directory.fd(), name, &info, 0) == 0;
}

Status check_not_pointer(const ByteSource& source) {
  std::string head(std::min<uint64_t>(source.size(), 64), '\0');
  SPILLWAY_RETURN_IF_ERROR(source.read(0, std::as_writable_bytes(std::span(head))));
  return refuse_lfs_pointer(head, source.name());
}

Status read_in_order(const ByteSource& file, const StoredTensor& tensor, uint64_t offset,
                     std::span<std::byte> target) {
  if (tensor.blocks == nullptr) return file.read(tensor.offset + offset, target);
  return read_expanded(file, tensor.offset, *tensor.blocks, offset, target);
}

// Reads rows that lie as queries, keys, values, of all heads each, as those of each head. The rows
// of a head are `head_bytes`; read_at(offset, part) reads them as they lie.
template <class ReadAt>
Status read_by_head(uint64_t heads, uint64_t head_bytes, uint64_t offset,
                    std::span<std::byte> target, const ReadAt& read_at) {
  while (!target.empty()) {
    const uint64_t index = offset / head_bytes;
    const uint64_t within = offset % head_bytes;
    const auto part = target.first(std::min<uint64_t>(target.size(), head_bytes - within));
    const uint64_t lies_at = (index % 3 * heads + index / 3) * head_bytes;
    SPILLWAY_RETURN_IF_ERROR(read_at(lies_at + within, part));
    target = target.subspan(part.size());
    offset += part.size();
  }
  return {};
}

}  // namespace

Status refuse_lfs_pointer(std::string_view text, std::string_view path) {
  if (!text.starts_with("version https://git-lfs")) return {};
  return invalid_argument(std::string(path) +
                          " is a Git-LFS pointer, not the file itself; fetch it with 'git lfs "
                          "pull' or download the model again");
}

// Fills a Checkpoint file by file.
class CheckpointOpener {
 public:
  static Result<Checkpoint> open_gguf(const std::string& path) {
    SPILLWAY_ASSIGN_OR_RETURN(GgufModel model, GgufModel::open(path));
    CheckpointOpener opener({}, {});
    SPILLWAY_ASSIGN_OR_RETURN(GgufTensors gguf, tensors_of(model));
    opener.checkpoint_.block_formats_ = std::move(gguf.block_formats);
    opener.checkpoint_.tensors_ = std::move(gguf.tensors);
    opener.checkpoint_.files_ = model.take_files();
    SPILLWAY_RETURN_IF_ERROR(opener.index_names());
    return std::move(opener.checkpoint_);
  }

  CheckpointOpener(File directory, const CheckpointOptions& options)
      : directory_(std::move(directory)), options_(options) {}

  Result<Checkpoint> open() {
    const Candidate* chosen = nullptr;
    for (const Candidate& candidate : kCandidates) {
      if (!exists(directory_, candidate.file)) continue;
      if (chosen == nullptr) {
        chosen = &candidate;
      } else {
        checkpoint_.notes_.push_back(directory_.path() + ": reading " + chosen->file +
                                     ", ignoring " + candidate.file);
      }
    }
    if (chosen == nullptr) {
      return not_found(directory_.path() +
                       " has no weights: no model.safetensors, no pytorch_model.bin and no index "
                       "of their shards");
    }
    SPILLWAY_RETURN_IF_ERROR(chosen->index ? add_shards(*chosen) : add_file(chosen->file));
    SPILLWAY_RETURN_IF_ERROR(index_names());
    return std::move(checkpoint_);
  }

 private:
  Status add_shards(const Candidate& candidate) {
    SPILLWAY_ASSIGN_OR_RETURN(const File file, File::open_in(directory_, candidate.file));
    SPILLWAY_ASSIGN_OR_RETURN(const std::string text, read_small_file(file, kIndexBytesMax));
    SPILLWAY_RETURN_IF_ERROR(refuse_lfs_pointer(text, file.path()));
    SPILLWAY_ASSIGN_OR_RETURN(const auto shards,
                              parse_shard_index(text, file.path(), candidate.extension));
    for (const auto& [name, tensors] : shards) {
      const size_t first = checkpoint_.tensors_.size();
      const Status status = add_file(name);
      if (status.code() == Code::kNotFound) {
        return invalid_argument(file.path() + " names the shard " + name +
                                ", which is missing; download it again");
      }
      SPILLWAY_RETURN_IF_ERROR(status);
      SPILLWAY_RETURN_IF_ERROR(check_shard(first, tensors).at(file.path() + ": shard " + name));
    }
    return {};
  }

  // Checks that the shard just added (tensors from `first` on) has exactly the names of the index.
  Status check_shard(size_t first, const std::vector<std::string>& expected) const {
    std::vector<std::string_view> actual;
    for (size_t i = first; i < checkpoint_.tensors_.size(); ++i) {
      actual.push_back(checkpoint_.tensors_[i].stored.name);
    }
    std::sort(actual.begin(), actual.end());
    for (const std::string& name : expected) {
      if (!std::binary_search(actual.begin(), actual.end(), name)) {
        return invalid_argument("tensor " + in_quotes(name) + " of the index is not in it");
      }
    }
    for (const std::string_view name : actual) {
      if (!std::binary_search(expected.begin(), expected.end(), name)) {
        return invalid_argument("its tensor " + in_quotes(name) + " is not in the index");
      }
    }
    return {};
  }

  Status add_file(const std::string& name) {
    SPILLWAY_ASSIGN_OR_RETURN(File file, File::open_in(directory_, name));
    SPILLWAY_ASSIGN_OR_RETURN(auto source, file_source(std::move(file)));
    SPILLWAY_RETURN_IF_ERROR(check_not_pointer(*source));
    const auto file_index = static_cast<uint32_t>(checkpoint_.files_.size());
    checkpoint_.files_.push_back(std::move(source));
    const ByteSource& bytes = *checkpoint_.files_.back();
    if (name.ends_with(".safetensors")) {
      SPILLWAY_ASSIGN_OR_RETURN(auto tensors, read_safetensors(bytes, {options_.lenient_header}));
      add_tensors(std::move(tensors), file_index, 0);
      return {};
    }
    SPILLWAY_ASSIGN_OR_RETURN(TorchFile torch, read_torch(bytes));
    add_tensors(std::move(torch.tensors), file_index,
                static_cast<uint32_t>(checkpoint_.records_.size()));
    for (TorchRecord& record : torch.records) {
      checkpoint_.records_.push_back(
          {file_index, std::move(record.name), record.offset, record.bytes, record.crc});
    }
    return {};
  }

  void add_tensors(std::vector<StoredTensor> tensors, uint32_t file, uint32_t first_record) {
    for (StoredTensor& tensor : tensors) {
      if (tensor.record) *tensor.record += first_record;
      checkpoint_.tensors_.push_back({std::move(tensor), file});
    }
  }

  Status index_names() {
    for (size_t i = 0; i < checkpoint_.tensors_.size(); ++i) {
      const CheckpointTensor& tensor = checkpoint_.tensors_[i];
      const auto [found, fresh] = checkpoint_.by_name_.emplace(tensor.stored.name, i);
      if (fresh) continue;
      const uint32_t other = checkpoint_.tensors_[found->second].file;
      return invalid_argument("tensor " + in_quotes(tensor.stored.name) + " is in " +
                              checkpoint_.file_name(other) + " and again in " +
                              checkpoint_.file_name(tensor.file));
    }
    return {};
  }

  const File directory_;
  const CheckpointOptions options_;
  Checkpoint checkpoint_;
};

Result<Checkpoint> Checkpoint::open(const std::string& path, const CheckpointOptions& options) {
  if (is_gguf_path(path)) return CheckpointOpener::open_gguf(path);
  SPILLWAY_ASSIGN_OR_RETURN(File opened, File::open(path, O_RDONLY | O_DIRECTORY));
  return CheckpointOpener(std::move(opened), options).open();
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

uint64_t Checkpoint::tensor_bytes() const {
  uint64_t bytes = 0;
  for (const CheckpointTensor& tensor : tensors_) bytes += tensor.stored.bytes;
  return bytes;
}

Status Checkpoint::read(const CheckpointTensor& tensor, uint64_t offset,
                        std::span<std::byte> target) const {
  SPILLWAY_CHECK(offset <= tensor.stored.bytes && target.size() <= tensor.stored.bytes - offset);
  const ByteSource& file = *files_[tensor.file];
  const uint64_t heads = tensor.stored.stacked_heads;
  const auto read_at = [&](uint64_t at, std::span<std::byte> part) {
    return read_in_order(file, tensor.stored, at, part);
  };
  if (heads == 0) return read_at(offset, target);
  return read_by_head(heads, tensor.stored.bytes / (3 * heads), offset, target, read_at);
}

Status Checkpoint::read_block_rows(const CheckpointTensor& tensor, int64_t first_row,
                                   std::span<std::byte> target) const {
  const StoredTensor& stored = tensor.stored;
  SPILLWAY_CHECK(stored.blocks != nullptr && stored.shape.size() == 2);
  const auto rows = static_cast<uint64_t>(stored.shape[0]);
  const uint64_t row_bytes =
      static_cast<uint64_t>(stored.shape[1]) / stored.blocks->elements * stored.blocks->bytes;
  const uint64_t offset = static_cast<uint64_t>(first_row) * row_bytes;
  SPILLWAY_CHECK(offset + target.size() <= rows * row_bytes);
  const ByteSource& file = *files_[tensor.file];
  const auto read_at = [&](uint64_t at, std::span<std::byte> part) {
    return file.read(stored.offset + at, part);
  };
  const uint64_t heads = stored.stacked_heads;
  if (heads == 0) return read_at(offset, target);
  return read_by_head(heads, rows / (3 * heads) * row_bytes, offset, target, read_at);
}

Status Checkpoint::verify(const CheckpointRecord& record) const {
  std::vector<std::byte> buffer(std::min<uint64_t>(record.bytes, kVerifyBytes));
  uLong crc = crc32(0, nullptr, 0);
  for (uint64_t done = 0; done < record.bytes;) {
    const size_t step = std::min<uint64_t>(record.bytes - done, buffer.size());
    const auto part = std::span(buffer).first(step);
    SPILLWAY_RETURN_IF_ERROR(files_[record.file]->read(record.offset + done, part));
    crc = crc32(crc, reinterpret_cast<const Bytef*>(part.data()), static_cast<uInt>(step));
    done += step;
  }
  if (crc == record.crc) return {};
  return corruption(file_name(record.file) + ": record " + record.name + " (bytes " +
                    std::to_string(record.offset) + " to " +
                    std::to_string(record.offset + record.bytes) +
                    ") does not match its CRC32; download the file again, or convert with "
                    "--no-crc if it was saved without checksums");
}

Status Checkpoint::check_unchanged() const {
  for (const auto& file : files_) SPILLWAY_RETURN_IF_ERROR(file->check_unchanged());
  return {};
}

}  // namespace spillway
