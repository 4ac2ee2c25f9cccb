#include "kernels/weight_panels.h"

#include <bit>
#include <cstring>

#include "kernels/base/check.h"

namespace spillway {

namespace {

using Words = uint32_t __attribute__((vector_size(16)));
using Halves = uint16_t __attribute__((vector_size(16)));

template <class Vector>
Vector load(const std::byte* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

template <class Vector>
void store(std::byte* to, Vector vector) {
  std::memcpy(to, &vector, sizeof(vector));
}

// {a0, b0, a1, b1} and {a2, b2, a3, b3}.
Words low_words(Words a, Words b) {
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
Words high_words(Words a, Words b) {
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
// {a0, a1, b0, b1} and {a2, a3, b2, b3}.
Words low_pairs(Words a, Words b) {
  return __builtin_shufflevector(a, b, 0, 1, 4, 5);
}
Words high_pairs(Words a, Words b) {
  return __builtin_shufflevector(a, b, 2, 3, 6, 7);
}

// Each pair of inputs is one word, and the panel is the rows' transpose. Cache lines of the rows
// are used up one after another.
template <size_t kRows>
void pack_bf16(size_t columns, const std::byte* rows, std::byte* panel) {
  constexpr size_t kWord = sizeof(uint32_t), kLine = 16, kBlock = 4;
  const size_t words = columns / 2, row_bytes = words * kWord;
  for (size_t line = 0; line < words; line += kLine) {
    for (size_t r = 0; r < kRows; r += kBlock) {
      for (size_t w = line; w < line + kLine; w += kBlock) {
        const std::byte* from = rows + r * row_bytes + w * kWord;
        const auto a = load<Words>(from), b = load<Words>(from + row_bytes);
        const auto c = load<Words>(from + 2 * row_bytes), d = load<Words>(from + 3 * row_bytes);
        const Words ab = low_words(a, b), cd = low_words(c, d);
        const Words ab_high = high_words(a, b), cd_high = high_words(c, d);
        std::byte* to = panel + (w * kRows + r) * kWord;
        store(to, low_pairs(ab, cd));
        store(to + kRows * kWord, high_pairs(ab, cd));
        store(to + 2 * kRows * kWord, low_pairs(ab_high, cd_high));
        store(to + 3 * kRows * kWord, high_pairs(ab_high, cd_high));
      }
    }
  }
}

// Transposes eight rows of eight numbers: first the numbers of two rows side by side, then as words
// those of four and of eight.
void transpose_halves(const std::byte* from, size_t row_bytes, std::byte* to, size_t to_bytes) {
  Words twos[8], fours[8];
  for (size_t i = 0; i < 4; ++i) {
    const auto a = load<Halves>(from + 2 * i * row_bytes);
    const auto b = load<Halves>(from + (2 * i + 1) * row_bytes);
    twos[2 * i] = std::bit_cast<Words>(__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11));
    twos[2 * i + 1] =
        std::bit_cast<Words>(__builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15));
  }
  for (size_t half = 0; half < 2; ++half) {    // Rows 0 to 3, and 4 to 7
    for (size_t side = 0; side < 2; ++side) {  // Columns 0 to 3, and 4 to 7
      const Words a = twos[4 * half + side], b = twos[4 * half + 2 + side];
      fours[4 * half + 2 * side] = low_words(a, b);
      fours[4 * half + 2 * side + 1] = high_words(a, b);
    }
  }
  for (size_t i = 0; i < 4; ++i) {
    store(to + 2 * i * to_bytes, low_pairs(fours[i], fours[4 + i]));
    store(to + (2 * i + 1) * to_bytes, high_pairs(fours[i], fours[4 + i]));
  }
}

template <size_t kRows>
void pack_f16(size_t columns, const std::byte* rows, std::byte* panel) {
  constexpr size_t kHalf = sizeof(uint16_t), kBlock = 8;
  const size_t row_bytes = columns * kHalf;
  for (size_t line = 0; line < columns; line += 2 * kBlock) {
    for (size_t r = 0; r < kRows; r += kBlock) {
      for (size_t c = line; c < line + 2 * kBlock; c += kBlock) {
        transpose_halves(rows + r * row_bytes + c * kHalf, row_bytes,
                         panel + (c * kRows + r) * kHalf, kRows * kHalf);
      }
    }
  }
}

}  // namespace

int64_t panel_rows(MatrixLayout layout) {
  SPILLWAY_CHECK(layout != MatrixLayout::kRows);
  return layout == MatrixLayout::kPanels16 ? 16 : 64;
}

void pack_panel(MatrixLayout layout, Format format, int64_t columns, const std::byte* rows,
                std::byte* panel) {
  SPILLWAY_CHECK(format == Format::kBF16 || format == Format::kF16);
  const auto padded = static_cast<size_t>(padded_columns(layout, format, columns));
  const bool narrow = panel_rows(layout) == 16;
  if (format == Format::kBF16) {
    return narrow ? pack_bf16<16>(padded, rows, panel) : pack_bf16<64>(padded, rows, panel);
  }
  return narrow ? pack_f16<16>(padded, rows, panel) : pack_f16<64>(padded, rows, panel);
}

}  // namespace spillway
