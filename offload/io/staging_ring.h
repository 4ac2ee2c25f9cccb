// A ring of staging memory for transfers, in order: allocated at the head, freed at the tail.
// Pieces are contiguous; a piece that does not fit before the end starts at the beginning. Owns no
// memory. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "offload/io/io.h"

namespace spillway {

class StagingRing {
 public:
  // REQUIRES: a multiple of kIoAlignment, not empty.
  explicit StagingRing(std::span<std::byte> memory) : memory_(memory) {
    SPILLWAY_CHECK(!memory.empty() && memory.size() % kIoAlignment == 0);
  }

  // Ring size that holds pieces of `together_bytes` in all, none above `piece_bytes_max`, wherever
  // the head is.
  static uint64_t bytes_for(uint64_t together_bytes, uint64_t piece_bytes_max) {
    return together_bytes + piece_bytes_max;
  }

  uint64_t bytes() const { return memory_.size(); }
  bool empty() const { return ends_.empty(); }

  // Allocates the next piece; null while the ring is full. Aligned to kIoAlignment if the memory
  // is.
  std::byte* take(uint64_t bytes) {
    const uint64_t size = round_up(bytes, kIoAlignment);
    if (empty()) head_ = tail_ = 0;
    uint64_t start = head_;
    const uint64_t at = start % memory_.size();
    if (at + size > memory_.size()) start += memory_.size() - at;
    if (start + size - tail_ > memory_.size()) return nullptr;
    head_ = start + size;
    ends_.push_back(head_);
    return memory_.data() + start % memory_.size();
  }

  // Frees the oldest piece. REQUIRES: there is one.
  void give_back() {
    SPILLWAY_CHECK(!empty());
    tail_ = ends_.front();
    ends_.pop_front();
  }

  void clear() { ends_.clear(); }

 private:
  std::span<std::byte> memory_;
  uint64_t head_ = 0, tail_ = 0;  // Endless positions, taken modulo the ring's size
  std::deque<uint64_t> ends_;     // Ends of the allocated pieces, oldest first
};

}  // namespace spillway
