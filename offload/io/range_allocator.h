// A first-fit allocator over a fixed range of bytes. One thread at a time. Invariant: free and
// reserved bytes add up; free neighbours are merged.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace spillway {

class RangeAllocator {
 public:
  explicit RangeAllocator(uint64_t bytes) : total_(bytes) {
    if (bytes > 0) free_.emplace(0, bytes);
  }

  uint64_t total() const { return total_; }
  uint64_t reserved() const { return reserved_; }

  // The offset of `bytes` newly reserved bytes; none: no free range is large enough now. Reserving
  // 0 bytes always succeeds.
  std::optional<uint64_t> reserve(uint64_t bytes);
  void release(uint64_t offset, uint64_t bytes);

  void verify() const;

 private:
  uint64_t total_;
  uint64_t reserved_ = 0;
  std::map<uint64_t, uint64_t> free_;  // Offset to bytes
};

}  // namespace spillway
