// The table of a packed model file: laid out from a shape, written as JSON, read back and checked.
// Only model_file.cc, model_file_writer.cc and tests need this. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "offload/model_file/model_file.h"

namespace spillway {

constexpr uint64_t kSuperblockBytes = kFileAlignment;
constexpr uint64_t kFirstSlabOffset = 2 * kSuperblockBytes;
constexpr uint32_t kModelFileVersion = 1;
// Of the table, where the model has a sliding window: builds that do not know windows would ignore
// the member and compute another model.
constexpr uint32_t kTableVersionWindow = 2;
// Of the table, where weights are in Format::kQ8: before this version "q8" was the name of what is
// kQ8_1 now, and is read so.
constexpr uint32_t kTableVersionRowScale = 3;
// Of the table, where matrices are multiplied by Hadamard matrices: builds that do not know them
// would ignore the member and multiply by other matrices.
constexpr uint32_t kTableVersionHadamard = 4;

// Limits of a table read from outside.
constexpr uint64_t kTableBytesMax = uint64_t{512} << 20;
constexpr size_t kEmbeddedFilesMax = 16;
constexpr uint64_t kEmbeddedFileBytesMax = uint64_t{64} << 20;

// Encodes the table: JSON of *json_bytes bytes, then the embedded files' bytes.
std::string encode_table(const ModelFileTable& table, size_t* json_bytes);

// The inverse of encode_table(). Checks everything a reader relies on: the tensors are those of the
// shape, every slab belongs to one matrix, one table or one layer's vectors and is large enough,
// the slabs tile [kFirstSlabOffset, slabs_end).
Result<ModelFileTable> decode_table(std::string_view text, size_t json_bytes, uint64_t slabs_end);

// Superblock fields other than the magic, the version and its own checksum.
struct Superblock {
  std::array<uint8_t, 16> file_id{};
  uint64_t table_offset = 0;
  uint64_t table_bytes = 0;  // JSON and embedded files.
  uint64_t json_bytes = 0;
  uint64_t table_checksum = 0;
};

std::array<std::byte, kSuperblockBytes> encode_superblock(const Superblock& superblock);

// kCorruption when it does not verify, kInvalidArgument for an unknown version.
Result<Superblock> decode_superblock(std::span<const std::byte, kSuperblockBytes> bytes);

}  // namespace spillway
