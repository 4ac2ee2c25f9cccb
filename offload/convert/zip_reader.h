// Reads the ZIP files that torch.save writes: uncompressed members, ZIP64, nothing else. An
// accepted file has one reading: its end record locates the central directory, whose members tile
// everything before it (no hole, no overlap, no prefix), and names are unique whatever the case.
// Pure function of the source, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/byte_source.h"

namespace spillway {

struct ZipMember {
  std::string name;     // Without the root folder: "data/0".
  uint64_t offset = 0;  // The bytes' place in the file
  uint64_t bytes = 0;
  uint32_t crc = 0;  // CRC32 of the bytes, for the caller to verify
};

// The members in the order of the file. Errors name the member and the reason, not the file.
// Reads the central directory (at most 256 MiB) and the local headers. Blocks.
Result<std::vector<ZipMember>> read_zip(const ByteSource& source);

}  // namespace spillway
