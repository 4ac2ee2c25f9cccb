// Conversion of long runs of plain numbers in vectors, with an eye on those that are not finite:
// bit for bit what convert_elements() (base/dtype.h) does one by one. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"

namespace spillway {

// Numbers of weights that no healthy checkpoint has.
struct NonFinite {
  uint64_t nan = 0;
  uint64_t inf = 0;

  uint64_t total() const { return nan + inf; }
  NonFinite& operator+=(const NonFinite& other) {
    nan += other.nan;
    inf += other.inf;
    return *this;
  }
};

// What a conversion met.
struct ConversionCounts {
  NonFinite source;
  uint64_t overflow = 0;  // Finite in the source, infinite in the target

  NonFinite target() const { return {source.nan, source.inf + overflow}; }
};

// Converts `count` numbers with round to nearest even. Adds to `counts` unless it is null. Any
// alignment; no overlap.
void convert_numbers(DType from, const std::byte* source, DType to, std::byte* target, size_t count,
                     ConversionCounts* counts = nullptr);

// Whether one of `count` numbers is NaN or infinite. Any alignment.
bool any_non_finite(DType dtype, const std::byte* numbers, size_t count);

}  // namespace spillway
