#include "offload/io/range_allocator.h"

#include <iterator>

#include "kernels/base/check.h"

namespace spillway {

std::optional<uint64_t> RangeAllocator::reserve(uint64_t bytes) {
  if (bytes == 0) return 0;
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, size] = *it;
    if (size < bytes) continue;
    free_.erase(it);
    if (size > bytes) free_.emplace(offset + bytes, size - bytes);
    reserved_ += bytes;
    return offset;
  }
  return std::nullopt;
}

void RangeAllocator::release(uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  SPILLWAY_CHECK(bytes <= reserved_);
  reserved_ -= bytes;
  auto [it, fresh] = free_.emplace(offset, bytes);
  SPILLWAY_CHECK(fresh);
  if (auto next = std::next(it); next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it == free_.begin()) return;
  if (auto before = std::prev(it); before->first + before->second == it->first) {
    before->second += it->second;
    free_.erase(it);
  }
}

void RangeAllocator::verify() const {
  uint64_t free = 0, end = 0;
  bool first = true;
  for (const auto& [offset, bytes] : free_) {
    SPILLWAY_CHECK(first || offset > end);  // Adjacent free ranges would have been merged
    end = offset + bytes;
    free += bytes;
    first = false;
  }
  SPILLWAY_CHECK(end <= total_ && free + reserved_ == total_);
}

}  // namespace spillway
