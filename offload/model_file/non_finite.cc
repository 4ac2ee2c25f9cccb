#include "offload/model_file/non_finite.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace spillway {

namespace {

// Without its sign a number is infinite when its bits equal `kInfinity` and NaN when they are
// above. 32-bit counters over short runs keep the loop in vector registers; nearly all runs have
// nothing to count.
template <class Bits, Bits kMagnitude, Bits kInfinity>
NonFinite count_bits(DType dtype, std::span<const std::byte> bytes) {
  constexpr size_t kRun = size_t{1} << 14;
  NonFinite counts;
  const size_t total = bytes.size() / sizeof(Bits);
  for (size_t first = 0; first < total; first += kRun) {
    const size_t last = std::min(total, first + kRun);
    if (!any_non_finite(dtype, bytes.data() + first * sizeof(Bits), last - first)) continue;
    uint32_t nan = 0;
    uint32_t inf = 0;
    for (size_t i = first; i < last; ++i) {
      Bits value;
      std::memcpy(&value, bytes.data() + i * sizeof(Bits), sizeof(Bits));
      value &= kMagnitude;
      nan += value > kInfinity ? 1 : 0;
      inf += value == kInfinity ? 1 : 0;
    }
    counts += {nan, inf};
  }
  return counts;
}

bool finite_f16(const std::byte* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return (bits & 0x7c00) != 0x7c00;
}

// Rows with one scale.
NonFinite count_non_finite_rows(MatrixLayout layout, int64_t rows, int64_t columns,
                                std::span<const std::byte> packed) {
  NonFinite counts;
  for (int64_t row = 0; row < rows; ++row) {
    float scale;
    std::memcpy(&scale, packed.data() + row_scale_offset(layout, columns, row), sizeof(scale));
    if (!std::isfinite(scale)) counts.nan += static_cast<uint64_t>(columns);
  }
  return counts;
}

}  // namespace

NonFinite count_non_finite_quantized(MatrixLayout layout, Format format, int64_t rows,
                                     int64_t columns, std::span<const std::byte> packed) {
  SPILLWAY_CHECK(packed.size() >= packed_bytes(layout, format, rows, columns));
  if (format == Format::kQ8) return count_non_finite_rows(layout, rows, columns, packed);
  const int64_t group = format_traits(format).group;
  NonFinite counts;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < columns; first += group) {
      const ScaleOffsets at = scale_offsets(layout, format, columns, row, first / group);
      if (finite_f16(packed.data() + at.scale) && finite_f16(packed.data() + at.minimum)) continue;
      counts.nan += static_cast<uint64_t>(std::min(group, columns - first));
    }
  }
  return counts;
}

NonFinite count_non_finite(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::kF32:
      return count_bits<uint32_t, 0x7fffffff, 0x7f800000>(dtype, bytes);
    case DType::kBF16:
      return count_bits<uint16_t, 0x7fff, 0x7f80>(dtype, bytes);
    case DType::kF16:
      return count_bits<uint16_t, 0x7fff, 0x7c00>(dtype, bytes);
  }
  return {};
}

}  // namespace spillway
