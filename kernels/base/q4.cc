#include "kernels/base/q4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace spillway {

// Nibbles are put into words with shifts and stored as they lie in memory.
static_assert(std::endian::native == std::endian::little);

namespace {

constexpr float kF16Max = 65504.0f;
constexpr uint16_t kF16Nan = 0x7e00;
constexpr uint16_t kF16Sign = 0x8000;
constexpr size_t kGroupWords = kQ4Group / kQ4NibblesPerWord;

// The largest float16 that is not above `value`. REQUIRES: |value| <= 65504.
uint16_t f16_not_above(float value) {
  const uint16_t nearest = f32_to_f16(value);
  if (f16_to_f32(nearest) <= value) return nearest;
  // Bits of negative numbers grow downwards. A positive one above `value` is not 0.
  return static_cast<uint16_t>((nearest & kF16Sign) != 0 ? nearest + 1 : nearest - 1);
}

// The smallest float16 that is not below `value`. REQUIRES: 0 <= value <= 65504.
uint16_t f16_not_below(float value) {
  const uint16_t nearest = f32_to_f16(value);
  return f16_to_f32(nearest) >= value ? nearest : static_cast<uint16_t>(nearest + 1);
}

int64_t words_of(int64_t count) {
  return (count + kQ4NibblesPerWord - 1) / kQ4NibblesPerWord;
}

}  // namespace

// Loops in this file use pointers and chains of eight, so that the compiler vectorises them: it
// does not with bounds-checked spans.
Q4Scale quantize_q4(std::span<const float> values, uint8_t* nibbles) {
  constexpr size_t kChains = 8;
  const float* const value = values.data();
  const size_t count = values.size();
  float low[kChains], high[kChains];
  float zero[kChains] = {};  // Stays 0 unless a value is NaN or infinite.
  std::fill_n(low, kChains, values[0]);
  std::fill_n(high, kChains, values[0]);
  size_t at = 0;
  for (; at + kChains <= count; at += kChains) {
    for (size_t j = 0; j < kChains; ++j) {
      const float x = value[at + j];
      low[j] = x < low[j] ? x : low[j];
      high[j] = high[j] < x ? x : high[j];
      zero[j] += x * 0.0f;
    }
  }
  for (; at < count; ++at) {
    low[0] = std::min(low[0], value[at]);
    high[0] = std::max(high[0], value[at]);
    zero[0] += value[at] * 0.0f;
  }
  const float lowest = *std::min_element(low, low + kChains);
  const float highest = *std::max_element(high, high + kChains);
  if (std::any_of(zero, zero + kChains, [](float z) { return z != 0.0f; })) {  // NaN
    std::fill_n(nibbles, count, uint8_t{0});
    return {0, kF16Nan};
  }
  Q4Scale result;
  result.minimum = f16_not_above(std::clamp(lowest, -kF16Max, kF16Max));
  const float minimum = f16_to_f32(result.minimum);
  result.scale = f16_not_below(std::clamp((highest - minimum) / 15.0f, 0.0f, kF16Max));
  const float scale = f16_to_f32(result.scale);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (size_t i = 0; i < count; ++i) {
    const float steps = (value[i] - minimum) * inverse;
    const float inside = steps < 0.0f ? 0.0f : 15.0f < steps ? 15.0f : steps;
    nibbles[i] = static_cast<uint8_t>(static_cast<int>(inside + 0.5f));
  }
  return result;
}

void add_q4_error(std::span<const float> values, const Q4Scale& scale, const uint8_t* nibbles,
                  QuantError* error) {
  const float s = f16_to_f32(scale.scale);
  const float m = f16_to_f32(scale.minimum);
  if (!std::isfinite(m)) return;  // Damaged: counted as such, not as an error.
  for (size_t i = 0; i < values.size(); ++i) {
    const double off = std::abs(double{q4_value(nibbles[i], s, m)} - double{values[i]});
    error->error_squares += off * off;
    error->value_squares += double{values[i]} * double{values[i]};
    error->error_max = std::max(error->error_max, off);
    const bool beyond = values[i] < m || (s == kF16Max && values[i] > q4_value(15, s, m));
    error->saturated += beyond ? 1 : 0;
  }
}

void pack_q4_row(std::span<const float> values, std::byte* row, QuantError* error) {
  while (!values.empty()) {
    const auto group = values.first(std::min(values.size(), static_cast<size_t>(kQ4Group)));
    values = values.subspan(group.size());
    uint8_t nibbles[kQ4Group];
    const Q4Scale scale = quantize_q4(group, nibbles);
    if (error != nullptr) add_q4_error(group, scale, nibbles, error);
    const auto words = static_cast<size_t>(words_of(static_cast<int64_t>(group.size())));
    uint32_t packed[kGroupWords] = {};
    if (words == kGroupWords && group.size() == kQ4Group) {
      for (size_t j = 0; j < kQ4NibblesPerWord; ++j) {
        for (size_t w = 0; w < kGroupWords; ++w) {
          packed[w] |= uint32_t{nibbles[j * kGroupWords + w]} << (4 * j);
        }
      }
    } else {
      for (size_t i = 0; i < group.size(); ++i) {
        packed[i % words] |= uint32_t{nibbles[i]} << (4 * (i / words));
      }
    }
    std::memcpy(row, &scale, sizeof(scale));
    std::memcpy(row + sizeof(scale), packed, words * sizeof(uint32_t));
    row += sizeof(scale) + words * sizeof(uint32_t);
  }
}

void unpack_q4_row(const std::byte* row, std::span<float> values) {
  while (!values.empty()) {
    const auto group = values.first(std::min(values.size(), static_cast<size_t>(kQ4Group)));
    values = values.subspan(group.size());
    Q4Scale scale;
    std::memcpy(&scale, row, sizeof(scale));
    const float s = f16_to_f32(scale.scale);
    const float m = f16_to_f32(scale.minimum);
    const auto words = static_cast<size_t>(words_of(static_cast<int64_t>(group.size())));
    uint32_t packed[kGroupWords];
    std::memcpy(packed, row + sizeof(scale), words * sizeof(uint32_t));
    float* const value = group.data();
    for (size_t i = 0; i < group.size(); ++i) {
      value[i] = q4_value(packed[i % words] >> (4 * (i / words)) & 15u, s, m);
    }
    row += sizeof(scale) + words * sizeof(uint32_t);
  }
}

}  // namespace spillway
