#include "offload/convert/gguf_cursor.h"

#include <algorithm>

namespace spillway {

namespace {

constexpr uint64_t kBufferBytes = uint64_t{256} << 10;

}  // namespace

GgufCursor::GgufCursor(const ByteSource& source)
    : source_(source), end_(std::min(source.size(), kHeaderBytesMax)) {}

Result<std::string> GgufCursor::string(uint64_t bytes_max) {
  const uint64_t at = offset_;
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t bytes, number<uint64_t>());
  if (bytes > bytes_max) {
    return invalid_argument("a string of " + std::to_string(bytes) + " bytes at byte " +
                            std::to_string(at) + ", the limit is " + std::to_string(bytes_max));
  }
  if (bytes > left()) {
    return corruption("a string of " + std::to_string(bytes) + " bytes at byte " +
                      std::to_string(at) + " leaves the file, which ends at " +
                      std::to_string(end_));
  }
  std::string text(bytes, '\0');
  SPILLWAY_RETURN_IF_ERROR(read(std::as_writable_bytes(std::span(text))));
  return text;
}

Status GgufCursor::read(std::span<std::byte> target) {
  if (target.size() > left()) {
    return corruption("the file is cut off: " + std::to_string(target.size()) +
                      " bytes wanted at byte " + std::to_string(offset_) + " of " +
                      std::to_string(end_));
  }
  while (!target.empty()) {
    const uint64_t skip = offset_ - buffer_offset_;
    if (skip >= buffer_.size()) {
      buffer_offset_ = offset_;
      buffer_.resize(std::min(kBufferBytes, left()));
      SPILLWAY_RETURN_IF_ERROR(source_.read(buffer_offset_, buffer_));
      continue;
    }
    const size_t step = std::min<uint64_t>(target.size(), buffer_.size() - skip);
    std::memcpy(target.data(), buffer_.data() + skip, step);
    target = target.subspan(step);
    offset_ += step;
  }
  return {};
}

}  // namespace spillway
