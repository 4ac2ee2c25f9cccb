// Reads the numbers and strings of a GGUF header one after another, buffered. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/byte_source.h"

namespace spillway {

class GgufCursor {
 public:
  static constexpr uint64_t kHeaderBytesMax = uint64_t{512} << 20;

  // `source` must outlive the cursor.
  explicit GgufCursor(const ByteSource& source);

  uint64_t offset() const { return offset_; }       // Of the next byte to read.
  uint64_t left() const { return end_ - offset_; }  // Bytes that a header may still take.

  // kCorruption names the byte where the file, or the greatest header, ends.
  template <class T>
  Result<T> number() {
    T value;
    SPILLWAY_RETURN_IF_ERROR(read(std::as_writable_bytes(std::span(&value, 1))));
    return value;
  }

  // A length and as many bytes. kInvalidArgument above `bytes_max`.
  Result<std::string> string(uint64_t bytes_max);

 private:
  Status read(std::span<std::byte> target);

  const ByteSource& source_;
  const uint64_t end_;
  uint64_t offset_ = 0;
  uint64_t buffer_offset_ = 0;  // Of the buffer's first byte.
  std::vector<std::byte> buffer_;
};

}  // namespace spillway
