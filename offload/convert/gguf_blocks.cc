#include "offload/convert/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace spillway {

namespace {

constexpr size_t kLargeBlock = 256;                 // Numbers of a K-quant's super-block.
constexpr size_t kNumbersAtOnce = size_t{1} << 17;  // Half a MiB of float32, which a cache holds.

float half_at(const std::byte* source) {
  uint16_t bits;
  std::memcpy(&bits, source, sizeof(bits));
  return f16_to_f32(bits);
}

// A copy, which the compiler knows not to overlap the numbers that are written.
template <size_t kCount>
std::array<uint8_t, kCount> bytes_at(const std::byte* source) {
  std::array<uint8_t, kCount> bytes;
  std::memcpy(bytes.data(), source, kCount);
  return bytes;
}

void expand_f32(const std::byte* source, size_t count, float* target) {
  std::memcpy(target, source, count * sizeof(float));
}

void expand_f16(const std::byte* source, size_t count, float* target) {
  convert_elements(DType::kF16, source, DType::kF32, reinterpret_cast<std::byte*>(target), count);
}

void expand_bf16(const std::byte* source, size_t count, float* target) {
  convert_elements(DType::kBF16, source, DType::kF32, reinterpret_cast<std::byte*>(target), count);
}

// Q4_0: scale d, 16 bytes of nibbles; byte i holds numbers i and i + 16. n - 8 times d.
void expand_q4_0(const std::byte* source, size_t count, float* target) {
  for (; count != 0; --count, source += 18, target += 32) {
    const float d = half_at(source);
    const auto q = bytes_at<16>(source + 2);
    for (size_t i = 0; i < 16; ++i) {
      target[i] = d * static_cast<float>((q[i] & 15) - 8);
      target[i + 16] = d * static_cast<float>((q[i] >> 4) - 8);
    }
  }
}

// Q4_1: scale d, minimum m, nibbles as in Q4_0. n times d plus m.
void expand_q4_1(const std::byte* source, size_t count, float* target) {
  for (; count != 0; --count, source += 20, target += 32) {
    const float d = half_at(source);
    const float m = half_at(source + 2);
    const auto q = bytes_at<16>(source + 4);
    for (size_t i = 0; i < 16; ++i) {
      target[i] = d * static_cast<float>(q[i] & 15) + m;
      target[i + 16] = d * static_cast<float>(q[i] >> 4) + m;
    }
  }
}

// The 32 five-bit numbers of a Q5_0 or Q5_1 block: four bytes of fifth bits, 16 bytes of nibbles.
std::array<int32_t, 32> five_bits(const std::byte* source) {
  uint32_t high;
  std::memcpy(&high, source, sizeof(high));
  const auto q = bytes_at<16>(source + 4);
  std::array<int32_t, 32> numbers;
  for (uint32_t i = 0; i < 16; ++i) {
    numbers[i] = static_cast<int32_t>((q[i] & 15u) | ((high >> i) & 1u) << 4);
    numbers[i + 16] = static_cast<int32_t>((q[i] >> 4u) | ((high >> (i + 16)) & 1u) << 4);
  }
  return numbers;
}

void expand_q5_0(const std::byte* source, size_t count, float* target) {
  for (; count != 0; --count, source += 22, target += 32) {
    const float d = half_at(source);
    const auto q = five_bits(source + 2);
    for (size_t i = 0; i < 32; ++i) target[i] = d * static_cast<float>(q[i] - 16);
  }
}

void expand_q5_1(const std::byte* source, size_t count, float* target) {
  for (; count != 0; --count, source += 24, target += 32) {
    const float d = half_at(source);
    const float m = half_at(source + 2);
    const auto q = five_bits(source + 4);
    for (size_t i = 0; i < 32; ++i) target[i] = d * static_cast<float>(q[i]) + m;
  }
}

void expand_q8_0(const std::byte* source, size_t count, float* target) {
  for (; count != 0; --count, source += 34, target += 32) {
    const float d = half_at(source);
    const auto q = bytes_at<32>(source + 2);
    for (size_t i = 0; i < 32; ++i) {
      target[i] = d * static_cast<float>(static_cast<int8_t>(q[i]));
    }
  }
}

// Scales and minima of the eight groups of 32 numbers in a Q4_K or Q5_K block.
struct GroupScales {
  std::array<float, 8> scale;
  std::array<float, 8> minimum;
};

// `source` is at the block's d and dmin, followed by 12 bytes: six-bit scales and minima, of which
// those of groups 4 to 7 have their upper two bits above those of groups 0 to 3.
GroupScales group_scales(const std::byte* source) {
  const float d = half_at(source);
  const float dmin = half_at(source + 2);
  const auto packed = bytes_at<12>(source + 4);
  GroupScales groups;
  for (size_t i = 0; i < 4; ++i) {
    const int scale_high = (packed[8 + i] & 15) | ((packed[i] >> 2) & 0x30);
    const int minimum_high = (packed[8 + i] >> 4) | ((packed[4 + i] >> 2) & 0x30);
    groups.scale[i] = d * static_cast<float>(packed[i] & 63);
    groups.scale[i + 4] = d * static_cast<float>(scale_high);
    groups.minimum[i] = dmin * static_cast<float>(packed[4 + i] & 63);
    groups.minimum[i + 4] = dmin * static_cast<float>(minimum_high);
  }
  return groups;
}

// Q4_K: 32 bytes hold the low nibbles of one group and the high nibbles of the next.
void expand_q4_k(const std::byte* source, size_t count, float* target) {
  for (; count != 0; --count, source += 144) {
    const GroupScales groups = group_scales(source);
    for (size_t g = 0; g < 8; g += 2, target += 64) {
      const auto q = bytes_at<32>(source + 16 + g * 16);
      for (size_t i = 0; i < 32; ++i) {
        target[i] = groups.scale[g] * static_cast<float>(q[i] & 15) - groups.minimum[g];
      }
      for (size_t i = 0; i < 32; ++i) {
        target[i + 32] =
            groups.scale[g + 1] * static_cast<float>(q[i] >> 4) - groups.minimum[g + 1];
      }
    }
  }
}

// Q5_K: as Q4_K, and bit g of 32 bytes in front is the fifth bit of group g.
void expand_q5_k(const std::byte* source, size_t count, float* target) {
  for (; count != 0; --count, source += 176) {
    const GroupScales groups = group_scales(source);
    const auto high = bytes_at<32>(source + 16);
    for (uint32_t g = 0; g < 8; g += 2, target += 64) {
      const auto q = bytes_at<32>(source + 48 + g * 16);
      for (size_t i = 0; i < 32; ++i) {
        const auto low_number = static_cast<int>((q[i] & 15u) | ((high[i] >> g) & 1u) << 4);
        const auto high_number = static_cast<int>((q[i] >> 4u) | ((high[i] >> (g + 1)) & 1u) << 4);
        target[i] = groups.scale[g] * static_cast<float>(low_number) - groups.minimum[g];
        target[i + 32] =
            groups.scale[g + 1] * static_cast<float>(high_number) - groups.minimum[g + 1];
      }
    }
  }
}

// Q6_K: 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed scales (one per 16 numbers), d.
// Each half of the block: nibbles of 64 bytes, low ones first, with the pairs of 32 bytes.
void expand_q6_k(const std::byte* source, size_t count, float* target) {
  for (; count != 0; --count, source += 210) {
    const float d = half_at(source + 208);
    const auto scales = bytes_at<16>(source + 192);
    for (size_t half = 0; half < 2; ++half) {
      const auto low = bytes_at<64>(source + half * 64);
      const auto high = bytes_at<32>(source + 128 + half * 32);
      for (uint32_t row = 0; row < 4; ++row, target += 32) {
        const uint8_t* nibbles = low.data() + (row % 2) * 32;
        const uint32_t shift = row / 2 * 4;
        const size_t group = half * 8 + row * 2;
        const float scale[2] = {d * static_cast<float>(static_cast<int8_t>(scales[group])),
                                d * static_cast<float>(static_cast<int8_t>(scales[group + 1]))};
        for (size_t i = 0; i < 32; ++i) {
          const uint32_t number =
              ((nibbles[i] >> shift) & 15u) | (((high[i] >> (2 * row)) & 3u) << 4);
          target[i] = scale[i / 16] * static_cast<float>(static_cast<int>(number) - 32);
        }
      }
    }
  }
}

uint16_t half_bits_at(const std::byte* source) {
  uint16_t bits;
  std::memcpy(&bits, source, sizeof(bits));
  return bits;
}

// The float16 of factor * d. `factor` is a power of two: exact unless it overflows, which makes an
// infinity; the caller then quantises the group anew.
uint16_t times(const std::byte* d, float factor) {
  return f32_to_f16(factor * half_at(d));
}

// The codes of 16 bytes of nibbles: byte i holds codes i and i + 16.
void split_nibbles(const std::byte* source, uint8_t* codes) {
  const auto q = bytes_at<16>(source);
  for (size_t i = 0; i < 16; ++i) {
    codes[i] = q[i] & 15;
    codes[i + 16] = q[i] >> 4;
  }
}

void split_q4_0(const std::byte* source, size_t count, uint8_t* codes, GroupScale* scales) {
  for (; count != 0; --count, source += 18, codes += 32, ++scales) {
    *scales = {half_bits_at(source), times(source, -8)};
    split_nibbles(source + 2, codes);
  }
}

void split_q4_1(const std::byte* source, size_t count, uint8_t* codes, GroupScale* scales) {
  for (; count != 0; --count, source += 20, codes += 32, ++scales) {
    *scales = {half_bits_at(source), half_bits_at(source + 2)};
    split_nibbles(source + 4, codes);
  }
}

// Adds the fifth bits, bit i of four bytes, to codes.
void add_fifth_bits(const std::byte* source, uint8_t* codes) {
  uint32_t bits;
  std::memcpy(&bits, source, sizeof(bits));
  for (size_t i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((bits >> i & 1) << 4);
}

void split_q5_0(const std::byte* source, size_t count, uint8_t* codes, GroupScale* scales) {
  for (; count != 0; --count, source += 22, codes += 32, ++scales) {
    *scales = {half_bits_at(source), times(source, -16)};
    split_nibbles(source + 6, codes);
    add_fifth_bits(source + 2, codes);
  }
}

void split_q5_1(const std::byte* source, size_t count, uint8_t* codes, GroupScale* scales) {
  for (; count != 0; --count, source += 24, codes += 32, ++scales) {
    *scales = {half_bits_at(source), half_bits_at(source + 2)};
    split_nibbles(source + 8, codes);
    add_fifth_bits(source + 4, codes);
  }
}

// Signed bytes become codes 128 higher.
void split_q8_0(const std::byte* source, size_t count, uint8_t* codes, GroupScale* scales) {
  for (; count != 0; --count, source += 34, codes += 32, ++scales) {
    *scales = {half_bits_at(source), times(source, -128)};
    const auto q = bytes_at<32>(source + 2);
    for (size_t i = 0; i < 32; ++i) codes[i] = q[i] ^ 128;
  }
}

GroupScale rounded(const GroupScales& groups, size_t g) {
  return {f32_to_f16(groups.scale[g]), f32_to_f16(-groups.minimum[g])};
}

void split_q4_k(const std::byte* source, size_t count, uint8_t* codes, GroupScale* scales) {
  for (; count != 0; --count, source += 144) {
    const GroupScales groups = group_scales(source);
    for (size_t g = 0; g < 8; g += 2, codes += 64) {
      const auto q = bytes_at<32>(source + 16 + g * 16);
      for (size_t i = 0; i < 32; ++i) {
        codes[i] = q[i] & 15;
        codes[i + 32] = q[i] >> 4;
      }
      *scales++ = rounded(groups, g);
      *scales++ = rounded(groups, g + 1);
    }
  }
}

void split_q5_k(const std::byte* source, size_t count, uint8_t* codes, GroupScale* scales) {
  for (; count != 0; --count, source += 176) {
    const GroupScales groups = group_scales(source);
    const auto fifth = bytes_at<32>(source + 16);
    for (size_t g = 0; g < 8; g += 2, codes += 64) {
      const auto q = bytes_at<32>(source + 48 + g * 16);
      for (size_t i = 0; i < 32; ++i) {
        codes[i] = static_cast<uint8_t>((q[i] & 15) | (fifth[i] >> g & 1) << 4);
        codes[i + 32] = static_cast<uint8_t>(q[i] >> 4 | (fifth[i] >> (g + 1) & 1) << 4);
      }
      *scales++ = rounded(groups, g);
      *scales++ = rounded(groups, g + 1);
    }
  }
}

constexpr GgufBlockFormat kGgufFormats[] = {
    {"F32", 0, 1, 4, DType::kF32, expand_f32},
    {"F16", 1, 1, 2, DType::kF16, expand_f16},
    {"BF16", 30, 1, 2, DType::kBF16, expand_bf16},
    {"Q8_0", 8, 32, 34, std::nullopt, expand_q8_0, 8, split_q8_0},
    {"Q4_0", 2, 32, 18, std::nullopt, expand_q4_0, 4, split_q4_0},
    {"Q4_1", 3, 32, 20, std::nullopt, expand_q4_1, 4, split_q4_1},
    {"Q5_0", 6, 32, 22, std::nullopt, expand_q5_0, 5, split_q5_0},
    {"Q5_1", 7, 32, 24, std::nullopt, expand_q5_1, 5, split_q5_1},
    {"Q4_K", 12, kLargeBlock, 144, std::nullopt, expand_q4_k, 4, split_q4_k},
    {"Q5_K", 13, kLargeBlock, 176, std::nullopt, expand_q5_k, 5, split_q5_k},
    {"Q6_K", 14, kLargeBlock, 210, std::nullopt, expand_q6_k},
};

struct NamedType {
  uint32_t id;
  std::string_view name;
};

// Formats that are told by name when they are refused.
constexpr NamedType kOtherTypes[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},  {40, "NVFP4"}, {41, "Q1_0"},
};

}  // namespace

const GgufBlockFormat* gguf_block_format(uint32_t id) {
  for (const GgufBlockFormat& format : kGgufFormats) {
    if (format.id == id) return &format;
  }
  return nullptr;
}

std::string gguf_type_name(uint32_t id) {
  if (const GgufBlockFormat* format = gguf_block_format(id)) return std::string(format->name);
  for (const NamedType& type : kOtherTypes) {
    if (type.id == id) return std::string(type.name);
  }
  return "type " + std::to_string(id);
}

std::string gguf_block_format_names() {
  std::string names;
  for (const GgufBlockFormat& format : kGgufFormats) {
    names += (names.empty() ? "" : ", ") + std::string(format.name);
  }
  return names;
}

Format format_of_blocks(const GgufBlockFormat& blocks) {
  SPILLWAY_CHECK(!blocks.plain);
  return blocks.code_bits == 4 ? Format::kQ4_1 : Format::kQ8_1;
}

Status read_expanded(const ByteSource& source, uint64_t first_block, const GgufBlockFormat& format,
                     uint64_t offset, std::span<std::byte> target) {
  const uint64_t unit = uint64_t{format.elements} * sizeof(float);
  const uint64_t blocks_at_once = std::max<uint64_t>(kNumbersAtOnce / format.elements, 1);
  std::vector<std::byte> blocks;
  std::vector<float> numbers;
  while (!target.empty()) {
    const uint64_t skip = offset % unit;
    const uint64_t count = std::min((skip + target.size() + unit - 1) / unit, blocks_at_once);
    blocks.resize(count * format.bytes);
    numbers.resize(count * format.elements);
    SPILLWAY_RETURN_IF_ERROR(source.read(first_block + offset / unit * format.bytes, blocks));
    format.expand(blocks.data(), count, numbers.data());
    const size_t step = std::min<uint64_t>(target.size(), count * unit - skip);
    std::memcpy(target.data(), reinterpret_cast<const std::byte*>(numbers.data()) + skip, step);
    target = target.subspan(step);
    offset += step;
  }
  return {};
}

}  // namespace spillway
