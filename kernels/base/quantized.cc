#include "kernels/base/quantized.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/base/quantized_rows.h"

namespace spillway {

// Nibbles are put into words with shifts and stored as they lie in memory.
static_assert(std::endian::native == std::endian::little);

namespace {

constexpr float kF16Max = 65504.0f;
constexpr uint16_t kF16Nan = 0x7e00;
constexpr uint16_t kF16Sign = 0x8000;

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

// Words of a group of `count` numbers.
template <class Traits>
constexpr size_t words_of(size_t count) {
  constexpr auto kFields = static_cast<size_t>(Traits::kFields);
  return (count + kFields - 1) / kFields;
}

// Stores a group and returns its bytes.
template <class Traits>
size_t store_group(std::span<const uint8_t> codes, const GroupScale& scale, std::byte* to) {
  constexpr auto kGroupWords = static_cast<size_t>(Traits::kWords);
  constexpr auto kFields = static_cast<size_t>(Traits::kFields);
  const size_t words = words_of<Traits>(codes.size());
  const uint8_t* const code = codes.data();
  uint32_t packed[kGroupWords] = {};
  if (codes.size() == static_cast<size_t>(Traits::kGroup)) {
    for (size_t j = 0; j < kFields; ++j) {
      for (size_t w = 0; w < kGroupWords; ++w) {
        packed[w] |= uint32_t{code[j * kGroupWords + w]} << (Traits::kBits * j);
      }
    }
  } else {
    for (size_t i = 0; i < codes.size(); ++i) {
      packed[i % words] |= uint32_t{code[i]} << (Traits::kBits * (i / words));
    }
  }
  std::memcpy(to, &scale, sizeof(scale));
  std::memcpy(to + sizeof(scale), packed, words * sizeof(uint32_t));
  return sizeof(scale) + words * sizeof(uint32_t);
}

template <class Traits>
void pack_row(std::span<const float> values, std::byte* row, QuantError* error) {
  while (!values.empty()) {
    const auto group = values.first(std::min(values.size(), static_cast<size_t>(Traits::kGroup)));
    values = values.subspan(group.size());
    uint8_t codes[Traits::kGroup];
    const GroupScale scale = quantize_group(Traits::kBits, group, codes);
    if (error != nullptr) add_group_error(Traits::kBits, group, scale, codes, error);
    row += store_group<Traits>({codes, group.size()}, scale, row);
  }
}

template <class Traits>
GroupScale load_group(const std::byte* from, std::span<uint8_t> codes) {
  const size_t words = words_of<Traits>(codes.size());
  GroupScale scale;
  uint32_t packed[Traits::kWords];
  std::memcpy(&scale, from, sizeof(scale));
  std::memcpy(packed, from + sizeof(scale), words * sizeof(uint32_t));
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] =
        static_cast<uint8_t>(packed[i % words] >> (Traits::kBits * (i / words)) & Traits::kMask);
  }
  return scale;
}

template <class Traits>
void unpack_row(const std::byte* row, std::span<float> values) {
  while (!values.empty()) {
    const auto group = values.first(std::min(values.size(), static_cast<size_t>(Traits::kGroup)));
    values = values.subspan(group.size());
    GroupScale scale;
    std::memcpy(&scale, row, sizeof(scale));
    const float s = f16_to_f32(scale.scale);
    const float m = f16_to_f32(scale.minimum);
    const size_t words = words_of<Traits>(group.size());
    uint32_t packed[Traits::kWords];
    std::memcpy(packed, row + sizeof(scale), words * sizeof(uint32_t));
    float* const value = group.data();
    for (size_t i = 0; i < group.size(); ++i) {
      const uint32_t code = packed[i % words] >> (Traits::kBits * (i / words)) & Traits::kMask;
      value[i] = quantized_value(code, s, m);
    }
    row += sizeof(scale) + words * sizeof(uint32_t);
  }
}

}  // namespace

GroupScale group_scale(int bits, float lowest, float highest) {
  const auto top = static_cast<float>((1 << bits) - 1);
  GroupScale result;
  // + 0: of zeros of both signs either may be the lowest, and the highest.
  result.minimum = f16_not_above(std::clamp(lowest, -kF16Max, kF16Max) + 0.0f);
  const float minimum = f16_to_f32(result.minimum);
  result.scale = f16_not_below(std::clamp((highest - minimum) / top, 0.0f, kF16Max) + 0.0f);
  return result;
}

// Loops in this file use pointers and chains of eight, so that the compiler vectorises them: it
// does not with bounds-checked spans.
GroupScale quantize_group(int bits, std::span<const float> values, uint8_t* codes) {
  constexpr size_t kChains = 8;
  const auto top = static_cast<float>((1 << bits) - 1);  // The largest code
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
    std::fill_n(codes, count, uint8_t{0});
    return {0, kF16Nan};
  }
  const GroupScale result = group_scale(bits, lowest, highest);
  const float minimum = f16_to_f32(result.minimum);
  const float scale = f16_to_f32(result.scale);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (size_t i = 0; i < count; ++i) {
    const float steps = (value[i] - minimum) * inverse;
    const float inside = steps < 0.0f ? 0.0f : top < steps ? top : steps;
    codes[i] = static_cast<uint8_t>(static_cast<int>(inside + 0.5f));
  }
  return result;
}

void add_group_error(int bits, std::span<const float> values, const GroupScale& scale,
                     const uint8_t* codes, QuantError* error) {
  const auto top = static_cast<uint32_t>((1 << bits) - 1);
  const float s = f16_to_f32(scale.scale);
  const float m = f16_to_f32(scale.minimum);
  if (!std::isfinite(m)) return;  // Damaged: counted as such, not as an error.
  for (size_t i = 0; i < values.size(); ++i) {
    const double off = std::abs(double{quantized_value(codes[i], s, m)} - double{values[i]});
    error->error_squares += off * off;
    error->value_squares += double{values[i]} * double{values[i]};
    error->error_max = std::max(error->error_max, off);
    const bool beyond = (m == -kF16Max && values[i] < m) ||
                        (s == kF16Max && values[i] > quantized_value(top, s, m));
    error->saturated += beyond ? 1 : 0;
  }
}

void store_group(Format format, std::span<const uint8_t> codes, const GroupScale& scale,
                 std::byte* to) {
  with_quant_traits(format, [&](auto traits) { store_group<decltype(traits)>(codes, scale, to); });
}

GroupScale load_group(Format format, const std::byte* from, std::span<uint8_t> codes) {
  return with_quant_traits(format,
                           [&](auto traits) { return load_group<decltype(traits)>(from, codes); });
}

void pack_quantized_row(Format format, std::span<const float> values, std::byte* row,
                        QuantError* error) {
  if (!is_grouped(format)) return pack_q8_row(values, row, error);
  with_quant_traits(format, [&](auto traits) { pack_row<decltype(traits)>(values, row, error); });
}

void unpack_quantized_row(Format format, const std::byte* row, std::span<float> values) {
  if (!is_grouped(format)) return unpack_q8_row(row, values);
  with_quant_traits(format, [&](auto traits) { unpack_row<decltype(traits)>(row, values); });
}

}  // namespace spillway
