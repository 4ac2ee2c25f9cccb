#include "offload/model_file/model_file.h"

#include <fcntl.h>

#include <array>
#include <cstring>
#include <string>

#include "offload/io/checksum.h"
#include "offload/model_file/model_file_table.h"

namespace spillway {

namespace {

// Reads the first copy that verifies; if none does, returns the first copy's error.
Result<Superblock> read_superblock(const File& file) {
  std::array<std::byte, kSuperblockBytes> bytes;
  SPILLWAY_RETURN_IF_ERROR(file.read(0, bytes));
  Result<Superblock> first = decode_superblock(bytes);
  if (first.ok() || first.status().code() != Code::kCorruption) return first;
  SPILLWAY_RETURN_IF_ERROR(file.read(kSuperblockBytes, bytes));
  Result<Superblock> second = decode_superblock(bytes);
  return second.ok() ? second : first;
}

Status check_bounds(const Superblock& superblock, uint64_t file_bytes) {
  const bool good = superblock.table_offset >= kFirstSlabOffset &&
                    superblock.table_offset % kFileAlignment == 0 &&
                    superblock.table_offset <= file_bytes &&
                    superblock.table_bytes == file_bytes - superblock.table_offset &&
                    superblock.json_bytes <= superblock.table_bytes;
  if (!good) {
    return corruption("the file has " + std::to_string(file_bytes) +
                      " bytes, its superblock speaks of a table of " +
                      std::to_string(superblock.table_bytes) + " bytes at " +
                      std::to_string(superblock.table_offset) + " that ends it");
  }
  if (superblock.table_bytes > kTableBytesMax) return corruption("the table is too large");
  return {};
}

Result<ModelFileTable> read_table(const File& file) {
  SPILLWAY_ASSIGN_OR_RETURN(const FileStamp stamp, file.stamp());
  if (stamp.bytes < kFirstSlabOffset) return corruption("too short for a packed model file");
  SPILLWAY_ASSIGN_OR_RETURN(const Superblock superblock, read_superblock(file));
  SPILLWAY_RETURN_IF_ERROR(check_bounds(superblock, stamp.bytes));
  std::string text(superblock.table_bytes, '\0');
  const auto bytes = std::as_writable_bytes(std::span(text));
  SPILLWAY_RETURN_IF_ERROR(file.read(superblock.table_offset, bytes));
  if (seeded_checksum(bytes, 0) != superblock.table_checksum) {
    return corruption("the table's checksum is wrong");
  }
  SPILLWAY_ASSIGN_OR_RETURN(ModelFileTable table,
                            decode_table(text, superblock.json_bytes, superblock.table_offset));
  table.file_id = superblock.file_id;
  return table;
}

}  // namespace

uint64_t ModelFileTable::slab_seed(uint32_t slab) const {
  uint64_t seed;
  std::memcpy(&seed, file_id.data(), sizeof(seed));
  return seed ^ slab;
}

std::vector<size_t> ModelFileTable::non_finite() const {
  std::vector<size_t> found;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].nan_count + tensors[i].inf_count > 0) found.push_back(i);
  }
  return found;
}

uint64_t ModelFileTable::weight_bytes() const {
  uint64_t bytes = 0;
  for (const SlabInfo& slab : slabs) bytes += slab.bytes;
  return bytes;
}

QuantError ModelFileTable::quantization() const {
  QuantError error;
  for (const TensorInfo& tensor : tensors) error.add(tensor.quantization);
  return error;
}

Result<ModelFile> ModelFile::open(const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(File file, File::open_to_read(path));
  Result<ModelFileTable> table = read_table(file);
  if (!table.ok()) return table.status().at(path);
  return ModelFile(std::move(file),
                   std::make_unique<const ModelFileTable>(std::move(table).value()));
}

Status ModelFile::read_slab(uint32_t index, std::span<std::byte> target) const {
  SPILLWAY_CHECK(index < table_->slabs.size());
  const SlabInfo& slab = table_->slabs[index];
  SPILLWAY_CHECK(target.size() == slab.bytes);
  // The second try tells a transfer error from corruption on the disk.
  constexpr int kTries = 2;
  for (int i = 0; i < kTries; ++i) {
    SPILLWAY_RETURN_IF_ERROR(file_.read(slab.offset, target));
    if (seeded_checksum(target, table_->slab_seed(index)) == slab.checksum) return {};
  }
  return corruption(path() + ": slab " + std::to_string(index) + " (bytes " +
                    std::to_string(slab.offset) + " to " +
                    std::to_string(slab.offset + slab.bytes) +
                    ") does not match its checksum; convert the model again, or delete the "
                    "file if it lies in the model cache");
}

}  // namespace spillway
