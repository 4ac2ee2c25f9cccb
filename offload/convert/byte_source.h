// Bytes that a format reader parses: a file, or memory in tests and fuzz targets.
// Thread rule: const methods from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "offload/io/file.h"

namespace spillway {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual const std::string& name() const = 0;  // The path, for messages
  virtual uint64_t size() const = 0;            // At the time of opening

  // Fills `target` from `offset` on; a range that leaves the source is kCorruption. Blocks.
  virtual Status read(uint64_t offset, std::span<std::byte> target) const = 0;

  // kCorruption when the source has changed since it was opened.
  virtual Status check_unchanged() const = 0;
};

// Takes over an open regular file.
Result<std::unique_ptr<ByteSource>> file_source(File file);

std::unique_ptr<ByteSource> memory_source(std::string name, std::vector<std::byte> bytes);

}  // namespace spillway
