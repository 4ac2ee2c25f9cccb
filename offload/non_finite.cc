#include "offload/non_finite.h"

#include <algorithm>
#include <cstring>

namespace spillway {

namespace {

// Without its sign a number is infinite when its bits equal `kInfinity` and NaN when they are
// above. 32-bit counters over short runs keep the loop in vector registers.
template <class Bits, Bits kMagnitude, Bits kInfinity>
NonFinite count_bits(std::span<const std::byte> bytes) {
  constexpr size_t kRun = size_t{1} << 20;
  NonFinite counts;
  const size_t total = bytes.size() / sizeof(Bits);
  for (size_t first = 0; first < total; first += kRun) {
    const size_t last = std::min(total, first + kRun);
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

}  // namespace

NonFinite count_non_finite(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::kF32:
      return count_bits<uint32_t, 0x7fffffff, 0x7f800000>(bytes);
    case DType::kBF16:
      return count_bits<uint16_t, 0x7fff, 0x7f80>(bytes);
    case DType::kF16:
      return count_bits<uint16_t, 0x7fff, 0x7c00>(bytes);
    default:
      SPILLWAY_CHECK(false);
  }
  return {};
}

}  // namespace spillway
