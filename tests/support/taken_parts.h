// Takes the parts of a product's tile (kernels/cpu/tile_taker.h) as they are finished.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/tile_taker.h"

namespace spillway::test {

class TakenParts {
 public:
  // `tile` has kGemmColumns numbers a row.
  TakenParts(const float* tile, int64_t rows)
      : tile_(tile),
        values_(static_cast<size_t>(rows * cpu::kGemmColumns)),
        times_(values_.size()) {}

  void operator()(int64_t row, int64_t count, int64_t column, int64_t width) {
    for (int64_t i = row; i < row + count; ++i) {
      for (int64_t j = column; j < column + width; ++j) {
        const auto at = static_cast<size_t>(i * cpu::kGemmColumns + j);
        values_.at(at) = tile_[at];
        ++times_.at(at);
      }
    }
  }

  // Each number of the tile was taken that many times, the last time as it is now.
  void check(int times) const {
    CHECK(std::ranges::count(times_, times) == std::ssize(times_));
    CHECK(std::memcmp(values_.data(), tile_, values_.size() * sizeof(float)) == 0);
  }
  const std::vector<float>& values() const { return values_; }

 private:
  const float* tile_;
  std::vector<float> values_;
  std::vector<int> times_;
};

}  // namespace spillway::test
