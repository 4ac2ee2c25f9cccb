#include "kernels/q8_panels.h"

#include <cstring>

namespace spillway {

namespace {

// Where a row's scale and its first quad of codes lie.
struct Place {
  size_t scale, codes;
};
Place place_of(int64_t row, size_t columns) {
  const auto r = static_cast<size_t>(row % kQ8PanelRows);
  const size_t panel =
      static_cast<size_t>(row / kQ8PanelRows) * q8_panel_bytes(static_cast<int64_t>(columns));
  return {panel + r * sizeof(float), panel + kQ8ScaleBytes + r * 4};
}

constexpr uint32_t kZeros = kQ8Zero * 0x01010101u;

}  // namespace

void clear_q8_panels(int64_t count, int64_t columns, std::byte* panels) {
  const size_t bytes = q8_panel_bytes(columns);
  for (int64_t i = 0; i < count; ++i, panels += bytes) {
    std::memset(panels, 0, kQ8ScaleBytes);
    std::memset(panels + kQ8ScaleBytes, kQ8Zero, bytes - kQ8ScaleBytes);
  }
}

void put_q8_row(int64_t row, std::span<const int8_t> codes, float scale, std::byte* panels) {
  const Place place = place_of(row, codes.size());
  std::memcpy(panels + place.scale, &scale, sizeof(scale));
  const int8_t* code = codes.data();
  std::byte* to = panels + place.codes;
  const size_t whole = codes.size() / 4;
  const std::byte* const end =
      panels + place.codes + (q8_panel_bytes(static_cast<int64_t>(codes.size())) - kQ8ScaleBytes);
  for (size_t quad = 0; quad < whole; ++quad, code += 4, to += kQ8QuadBytes) {
    uint32_t four;
    std::memcpy(&four, code, sizeof(four));
    four ^= kZeros;  // Adding 128 to a signed byte turns its highest bit.
    std::memcpy(to, &four, sizeof(four));
  }
  if (const size_t rest = codes.size() % 4; rest != 0) {
    uint32_t four = 0;
    std::memcpy(&four, code, rest);
    four ^= kZeros;
    std::memcpy(to, &four, sizeof(four));
    to += kQ8QuadBytes;
  }
  for (; to < end; to += kQ8QuadBytes) std::memcpy(to, &kZeros, sizeof(kZeros));
}

float take_q8_row(const std::byte* panels, int64_t row, std::span<int8_t> codes) {
  const Place place = place_of(row, codes.size());
  float scale;
  std::memcpy(&scale, panels + place.scale, sizeof(scale));
  int8_t* code = codes.data();
  const std::byte* from = panels + place.codes;
  for (size_t left = codes.size(); left > 0; from += kQ8QuadBytes) {
    uint32_t four;
    std::memcpy(&four, from, sizeof(four));
    four ^= kZeros;
    const size_t some = left < 4 ? left : 4;
    std::memcpy(code, &four, some);
    code += some;
    left -= some;
  }
  return scale;
}

}  // namespace spillway
