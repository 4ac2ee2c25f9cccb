// How the rows of a product are cut into the strips that a kernel keeps in registers: as few as
// possible, and as even as possible. Thirteen rows as 12 + 1 take as long as fifteen, since a strip
// of one row has too few independent sums to hide the latency of the multiply-add.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spillway::cpu {

// Of a block of `rows` rows, in strips of up to `most` rows. The higher ones come first.
class Strips {
 public:
  Strips(int64_t rows, int64_t most)
      : count_((rows + most - 1) / most),
        low_(count_ == 0 ? 0 : rows / count_),
        higher_(count_ == 0 ? 0 : rows % count_) {}

  int64_t count() const { return count_; }
  int64_t height(int64_t strip) const { return low_ + (strip < higher_ ? 1 : 0); }
  int64_t first(int64_t strip) const { return strip * low_ + std::min(strip, higher_); }

 private:
  int64_t count_, low_, higher_;
};

}  // namespace spillway::cpu
