// Writes a packed model file under a temporary name, whole, syncs it, then renames it.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <optional>

#include "kernels/base/units.h"
#include "offload/io/checksum.h"
#include "offload/io/spill_file.h"
#include "offload/model_file/model_file.h"
#include "offload/model_file/model_file_table.h"
#include "offload/model_file/non_finite.h"

namespace spillway {

namespace {

constexpr const char* kPartialSuffix = ".partial";

// Opens the temporary file and locks it, so that two writers of one output cannot mix; a file left
// by a crash is unlocked and is taken over.
Result<File> open_partial(const std::string& path) {
  const std::string partial = path + kPartialSuffix;
  SPILLWAY_ASSIGN_OR_RETURN(File file, File::open(partial, O_RDWR | O_CREAT | O_NOFOLLOW));
  if (::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return io_error("lock " + partial, errno);
    return Status(Code::kCapacity, "another process is writing " + path + "; wait for it to end");
  }
  // Between open and lock its owner may have renamed it: then this is the finished file.
  struct stat locked {};
  struct stat named {};
  if (::fstat(file.fd(), &locked) != 0) return io_error("stat " + partial, errno);
  if (::stat(partial.c_str(), &named) != 0 || named.st_ino != locked.st_ino) {
    return Status(Code::kCapacity, "another process just wrote " + path + "; try again");
  }
  if (::ftruncate(file.fd(), 0) != 0) return io_error("truncate " + partial, errno);
  return file;
}

// Reserves the space now, so that a full disk is an error at the start and not after an hour.
Status reserve(const File& file, uint64_t bytes) {
  if (::fallocate(file.fd(), 0, 0, static_cast<off_t>(bytes)) == 0) return {};
  const bool full = errno == ENOSPC || errno == EDQUOT;
  // Not every file system can reserve; the free space detects a full one either way. A quota does
  // not show in it.
  std::error_code error;
  const auto space = std::filesystem::space(file.path(), error);
  if (!full && (error || space.available >= bytes)) return {};
  return Status(Code::kCapacity, "no room on the disk for " + file.path() + ": " +
                                     format_bytes(bytes) + " needed, " +
                                     format_bytes(space.available) +
                                     " free; free some or choose another place");
}

class Writer final : public ModelFileWriter {
 public:
  Writer(std::string path, File file, ModelFileTable table)
      : path_(std::move(path)),
        file_(std::move(file)),
        table_(std::move(table)),
        written_(table_.slabs.size()),
        owners_(table_.slabs.size()) {
    // Past the page cache: measured 0.7 to 1.1 GB/s against 0.13 to 0.3 GB/s through it, fsync
    // included. Not every file system can (tmpfs).
    if (Result<File> direct = File::open(file_.path(), O_WRONLY | O_DIRECT); direct.ok()) {
      direct_ = std::move(direct).value();
    }
    for (size_t i = 0; i < table_.tensors.size(); ++i) {
      const TensorInfo& tensor = table_.tensors[i];
      for (uint32_t s = 0; s < tensor.slab_count; ++s) owners_[tensor.first_slab + s].push_back(i);
    }
  }

  ~Writer() override {
    if (!finished_) ::unlink(file_.path().c_str());
  }

  const ModelFileTable& table() const override { return table_; }
  const File& file() const { return file_; }

  Status write_slab(uint32_t index, std::span<const std::byte> bytes) override {
    SPILLWAY_CHECK(index < table_.slabs.size());
    SlabInfo& slab = table_.slabs[index];
    SPILLWAY_CHECK(bytes.size() == slab.bytes);
    SPILLWAY_CHECK(!written_[index].exchange(true));
    slab.checksum = seeded_checksum(bytes, table_.slab_seed(index));
    count(index, bytes);
    const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % kFileAlignment == 0;
    return (direct_ && aligned ? *direct_ : file_).write(slab.offset, bytes);
  }

  void set_quantization(size_t index, const QuantError& error) override {
    TensorInfo& tensor = table_.tensors.at(index);
    SPILLWAY_CHECK(is_quantized(tensor.format));
    tensor.quantization = error;
  }

  Status finish() override {
    for (const auto& written : written_) SPILLWAY_CHECK(written.load());
    SPILLWAY_RETURN_IF_ERROR(write_table());
    SPILLWAY_RETURN_IF_ERROR(file_.sync());
    if (std::rename(file_.path().c_str(), path_.c_str()) != 0) {
      return io_error("rename " + file_.path() + " to " + path_, errno);
    }
    finished_ = true;
    return sync_directory_of(path_);
  }

 private:
  // NaN and infinity of the tensors in one slab. Padding is zero and not counted.
  void count(uint32_t index, std::span<const std::byte> bytes) {
    for (const size_t i : owners_[index]) {
      TensorInfo& tensor = table_.tensors[i];
      const NonFinite found = count_in(tensor, index, bytes);
      if (found.total() == 0) continue;
      const std::lock_guard lock(count_mutex_);
      tensor.nan_count += found.nan;
      tensor.inf_count += found.inf;
    }
  }

  static NonFinite count_in(const TensorInfo& tensor, uint32_t slab,
                            std::span<const std::byte> bytes) {
    if (is_quantized(tensor.format)) {
      return count_non_finite_quantized(tensor.layout, tensor.format,
                                        tensor.rows_in_slab(slab - tensor.first_slab),
                                        tensor.spec.columns, bytes);
    }
    const DType type = element_of(tensor.format);
    if (tensor.spec.kind != WeightKind::kVector) return count_non_finite(type, bytes);
    return count_non_finite(
        type, bytes.subspan(tensor.offset_in_slab,
                            static_cast<size_t>(tensor.spec.elements()) * dtype_bytes(type)));
  }

  Status write_table() {
    Superblock superblock;
    superblock.file_id = table_.file_id;
    superblock.table_offset = kFirstSlabOffset + table_.weight_bytes();
    size_t json_bytes = 0;
    const std::string text = encode_table(table_, &json_bytes);
    if (text.size() > kTableBytesMax) {
      return invalid_argument("the table of " + path_ + " would need " + format_bytes(text.size()) +
                              ", the limit is " + format_bytes(kTableBytesMax));
    }
    const auto bytes = std::as_bytes(std::span(text));
    superblock.table_bytes = text.size();
    superblock.json_bytes = json_bytes;
    superblock.table_checksum = seeded_checksum(bytes, 0);
    SPILLWAY_RETURN_IF_ERROR(file_.write(superblock.table_offset, bytes));
    SPILLWAY_RETURN_IF_ERROR(file_.sync());
    // The superblocks, which make it a model file, are written only now that all data they refer to
    // is on the disk.
    const auto block = encode_superblock(superblock);
    SPILLWAY_RETURN_IF_ERROR(file_.write(0, block));
    return file_.write(kSuperblockBytes, block);
  }

  const std::string path_;
  File file_;
  std::optional<File> direct_;  // The file opened for slabs in aligned memory
  ModelFileTable table_;
  std::vector<std::atomic<bool>> written_;
  std::vector<std::vector<size_t>> owners_;  // The tensors in each slab
  std::mutex count_mutex_;
  bool finished_ = false;
};

Status check_files(const ModelFileTable& table) {
  if (table.files.size() > kEmbeddedFilesMax) return invalid_argument("too many tokenizer files");
  for (const auto& [name, contents] : table.files) {
    if (contents.size() <= kEmbeddedFileBytesMax) continue;
    return invalid_argument(name + " has " + format_bytes(contents.size()) + ", the limit is " +
                            format_bytes(kEmbeddedFileBytesMax));
  }
  return {};
}

Result<OutputPlace> place_of(const std::string& named) {
  SPILLWAY_ASSIGN_OR_RETURN(OutputPlace place, output_place(named));
  if (place.special.empty()) return place;
  return invalid_argument(named + " is " + place.special +
                          "; a packed model is not written in order and must be a file");
}

}  // namespace

Result<PackedFileRoom> ModelFileWriter::room(const std::string& named,
                                             const ModelFileTable& table) {
  SPILLWAY_RETURN_IF_ERROR(check_files(table));
  SPILLWAY_ASSIGN_OR_RETURN(const OutputPlace place, place_of(named));
  PackedFileRoom room;
  room.path = place.path;
  // Checksums, offsets and counts have their digits only when the file is written.
  size_t json_bytes = 0;
  room.bytes = kFirstSlabOffset + table.weight_bytes() + encode_table(table, &json_bytes).size() +
               32 * table.slabs.size() + 128 * table.tensors.size();
  SPILLWAY_ASSIGN_OR_RETURN(room.free_bytes, free_disk_bytes(place.path));
  struct stat left {};
  if (::lstat((place.path + kPartialSuffix).c_str(), &left) == 0 && S_ISREG(left.st_mode)) {
    room.free_bytes += static_cast<uint64_t>(left.st_blocks) * 512;
  }
  return room;
}

Result<std::unique_ptr<ModelFileWriter>> ModelFileWriter::create(const std::string& named,
                                                                 ModelFileTable table) {
  SPILLWAY_RETURN_IF_ERROR(check_files(table));
  SPILLWAY_ASSIGN_OR_RETURN(const OutputPlace place, place_of(named));
  const std::string& path = place.path;
  for (SlabInfo& slab : table.slabs) slab.offset += kFirstSlabOffset;
  if (::getrandom(table.file_id.data(), table.file_id.size(), 0) !=
      static_cast<ssize_t>(table.file_id.size())) {
    return io_error("getrandom", errno);
  }
  SPILLWAY_ASSIGN_OR_RETURN(File file, open_partial(path));
  const uint64_t bytes = kFirstSlabOffset + table.weight_bytes();
  auto writer = std::make_unique<Writer>(path, std::move(file), std::move(table));
  SPILLWAY_RETURN_IF_ERROR(reserve(writer->file(), bytes));
  return std::unique_ptr<ModelFileWriter>(std::move(writer));
}

}  // namespace spillway
