// Strips: the rows of a matrix product cut into parts that a kernel keeps in registers, as few and
// as even as possible; and the table of kernels by rows of a strip. Thirteen rows as 12 + 1 take as
// long as fifteen, since a strip of one row has too few independent sums to hide the latency of the
// multiply-add.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace spillway::cpu {

// Cuts a block of `rows` rows into strips of up to `most` rows. The taller ones come first.
class Strips {
 public:
  Strips(int64_t rows, int64_t most)
      : count_((rows + most - 1) / most),
        low_(count_ == 0 ? 0 : rows / count_),
        higher_(count_ == 0 ? 0 : rows % count_) {}

  int64_t count() const { return count_; }
  int64_t height(int64_t strip) const { return low_ + (strip < higher_ ? 1 : 0); }
  int64_t first(int64_t strip) const { return strip * low_ + std::min(strip, higher_); }
  // The strip behind those that are as tall as this one.
  int64_t end_of_height(int64_t strip) const { return strip < higher_ ? higher_ : count_; }

 private:
  int64_t count_, low_, higher_;
};

// A kernel for each number of rows: that for `rows` is of[rows - 1]. No member functions: these
// would be compiled for the instruction set of their first caller.
template <class Kernel, int kMax>
struct KernelsByRows {
  Kernel of[kMax];
};

// make(std::integral_constant<int, rows>()) for every number of rows from 1 to kMax.
template <int kMax, class Make>
consteval auto kernels_by_rows(Make make) {
  return [&]<int... kBelow>(std::integer_sequence<int, kBelow...>) {
    using Kernel = decltype(make(std::integral_constant<int, 1>()));
    return KernelsByRows<Kernel, kMax>{{make(std::integral_constant<int, kBelow + 1>())...}};
  }
  (std::make_integer_sequence<int, kMax>());
}

}  // namespace spillway::cpu
