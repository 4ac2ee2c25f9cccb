// The superblock of a packed model file: fixed places, little-endian, its own checksum last.
#include <bit>
#include <cstring>

#include "offload/io/checksum.h"
#include "offload/model_file/model_file_table.h"

namespace spillway {

namespace {

static_assert(std::endian::native == std::endian::little, "packed files are little-endian");

constexpr char kMagic[8] = {'S', 'P', 'I', 'L', 'L', 'W', 'A', 'Y'};
constexpr size_t kVersionAt = 8;
constexpr size_t kFileIdAt = 16;
constexpr size_t kTableOffsetAt = 32;
constexpr size_t kTableBytesAt = 40;
constexpr size_t kJsonBytesAt = 48;
constexpr size_t kTableChecksumAt = 56;
constexpr size_t kChecksumAt = kSuperblockBytes - 8;

template <class T>
T load(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <class T>
void store(std::span<std::byte> bytes, size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

}  // namespace

std::array<std::byte, kSuperblockBytes> encode_superblock(const Superblock& superblock) {
  std::array<std::byte, kSuperblockBytes> bytes{};
  std::memcpy(bytes.data(), kMagic, sizeof(kMagic));
  store(bytes, kVersionAt, kModelFileVersion);
  store(bytes, kFileIdAt, superblock.file_id);
  store(bytes, kTableOffsetAt, superblock.table_offset);
  store(bytes, kTableBytesAt, superblock.table_bytes);
  store(bytes, kJsonBytesAt, superblock.json_bytes);
  store(bytes, kTableChecksumAt, superblock.table_checksum);
  store(bytes, kChecksumAt, seeded_checksum(std::span(bytes).first(kChecksumAt), 0));
  return bytes;
}

Result<Superblock> decode_superblock(std::span<const std::byte, kSuperblockBytes> bytes) {
  if (std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return corruption("not a packed model file (no SPILLWAY magic)");
  }
  if (load<uint64_t>(bytes, kChecksumAt) != seeded_checksum(bytes.first(kChecksumAt), 0)) {
    return corruption("the superblock's checksum is wrong");
  }
  const auto version = load<uint32_t>(bytes, kVersionAt);
  if (version != kModelFileVersion) {
    return invalid_argument("packed file version " + std::to_string(version) +
                            ", this build reads version " + std::to_string(kModelFileVersion) +
                            "; convert the model again");
  }
  Superblock superblock;
  superblock.file_id = load<std::array<uint8_t, 16>>(bytes, kFileIdAt);
  superblock.table_offset = load<uint64_t>(bytes, kTableOffsetAt);
  superblock.table_bytes = load<uint64_t>(bytes, kTableBytesAt);
  superblock.json_bytes = load<uint64_t>(bytes, kJsonBytesAt);
  superblock.table_checksum = load<uint64_t>(bytes, kTableChecksumAt);
  return superblock;
}

}  // namespace spillway
