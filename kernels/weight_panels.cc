#include "kernels/weight_panels.h"

#include <algorithm>
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

// to[column][row] = from[row][column] of 32-bit words, rows and columns multiples of 4 and
// `from_bytes` and `to_bytes` apart. Cache lines of the rows are used up one after another.
void transpose_words(size_t rows, size_t columns, const std::byte* from, size_t from_bytes,
                     std::byte* to, size_t to_bytes) {
  constexpr size_t kWord = sizeof(uint32_t), kLine = 16, kBlock = 4;
  for (size_t line = 0; line < columns; line += kLine) {
    for (size_t r = 0; r < rows; r += kBlock) {
      for (size_t w = line; w < std::min(columns, line + kLine); w += kBlock) {
        const std::byte* at = from + r * from_bytes + w * kWord;
        const auto a = load<Words>(at), b = load<Words>(at + from_bytes);
        const auto c = load<Words>(at + 2 * from_bytes), d = load<Words>(at + 3 * from_bytes);
        const Words ab = low_words(a, b), cd = low_words(c, d);
        const Words ab_high = high_words(a, b), cd_high = high_words(c, d);
        std::byte* target = to + w * to_bytes + r * kWord;
        store(target, low_pairs(ab, cd));
        store(target + to_bytes, high_pairs(ab, cd));
        store(target + 2 * to_bytes, low_pairs(ab_high, cd_high));
        store(target + 3 * to_bytes, high_pairs(ab_high, cd_high));
      }
    }
  }
}

// Transposes eight rows of eight numbers: first the numbers of two rows side by side, then as words
// those of four and of eight.
void transpose_eight(const std::byte* from, size_t row_bytes, std::byte* to, size_t to_bytes) {
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

// The same of 16-bit numbers, rows and columns multiples of 8.
void transpose_halves(size_t rows, size_t columns, const std::byte* from, size_t from_bytes,
                      std::byte* to, size_t to_bytes) {
  constexpr size_t kHalf = sizeof(uint16_t), kBlock = 8, kLine = 2 * kBlock;
  for (size_t line = 0; line < columns; line += kLine) {
    for (size_t r = 0; r < rows; r += kBlock) {
      for (size_t c = line; c < std::min(columns, line + kLine); c += kBlock) {
        transpose_eight(from + r * from_bytes + c * kHalf, from_bytes,
                        to + c * to_bytes + r * kHalf, to_bytes);
      }
    }
  }
}

// Rows that are transposed at a time: a whole panel, or a quarter. Its words fill cache lines.
constexpr size_t kTileRows = 16;
// Columns of a tile: 16 KiB of float32, which with its part of the panel stays in the L1 cache.
constexpr size_t kTileColumns = 256;

// Where the numbers of a plain format lie in its panels. What a panel has side by side are single
// numbers, or pairs of inputs of bf16; either is a cell.
struct PanelShape {
  PanelShape(MatrixLayout layout, Format format, int64_t matrix_columns)
      : element(dtype_bytes(element_of(format))),
        cell(format == Format::kF16 ? 2 : 4),
        rows(static_cast<size_t>(panel_rows(layout))),
        columns(static_cast<size_t>(padded_columns(layout, format, matrix_columns))) {}

  size_t cells(size_t numbers) const { return numbers * element / cell; }
  size_t cell_row_bytes() const { return rows * cell; }  // From one column of cells to the next
  size_t panel_bytes() const { return rows * columns * element; }
  // Of row `row` of the matrix, a multiple of kTileRows, and column `column`.
  size_t offset(size_t row, size_t column) const {
    return row / rows * panel_bytes() + cells(column) * cell_row_bytes() + row % rows * cell;
  }

  // kTileRows dense rows, `row_bytes` apart, of `count` numbers into a panel and back.
  void put(size_t count, const std::byte* from, size_t row_bytes, std::byte* to) const {
    const auto transpose = cell == 2 ? transpose_halves : transpose_words;
    transpose(kTileRows, cells(count), from, row_bytes, to, cell_row_bytes());
  }
  void take(size_t count, const std::byte* from, std::byte* to, size_t row_bytes) const {
    const auto transpose = cell == 2 ? transpose_halves : transpose_words;
    transpose(cells(count), kTileRows, from, cell_row_bytes(), to, row_bytes);
  }

  const size_t element, cell, rows, columns;
};

struct Tile {
  alignas(64) std::byte bytes[kTileRows * kTileColumns * sizeof(float)];
};

}  // namespace

int64_t panel_rows(MatrixLayout layout) {
  SPILLWAY_CHECK(layout != MatrixLayout::kRows);
  return layout == MatrixLayout::kPanels16 ? 16 : 64;
}

void pack_panel(MatrixLayout layout, Format format, int64_t columns, const std::byte* rows,
                std::byte* panel) {
  SPILLWAY_CHECK(format == Format::kBF16 || format == Format::kF16);
  const PanelShape shape(layout, format, columns);
  const size_t row_bytes = shape.columns * shape.element;
  for (size_t row = 0; row < shape.rows; row += kTileRows) {
    shape.put(shape.columns, rows + row * row_bytes, row_bytes, panel + shape.offset(row, 0));
  }
}

void pack_panels(MatrixLayout layout, Format format, DType source_type, const std::byte* source,
                 int64_t rows, int64_t columns, std::byte* target, ConversionCounts* counts) {
  const PanelShape shape(layout, format, columns);
  const size_t all_rows =
      packed_bytes(layout, format, rows, columns) / (shape.columns * shape.element);
  const auto height = static_cast<size_t>(rows), width = static_cast<size_t>(columns);
  const size_t source_element = dtype_bytes(source_type);
  Tile tile;
  for (size_t row = 0; row < all_rows; row += kTileRows) {
    const size_t some_rows = std::min(kTileRows, height - std::min(height, row));
    for (size_t column = 0; column < shape.columns; column += kTileColumns) {
      const size_t some = std::min(kTileColumns, shape.columns - column);
      const size_t row_bytes = some * shape.element;
      const size_t numbers = std::min(some, width - std::min(width, column));
      for (size_t r = 0; r < some_rows; ++r) {
        std::byte* const to = tile.bytes + r * row_bytes;
        convert_numbers(source_type, source + ((row + r) * width + column) * source_element,
                        element_of(format), to, numbers, counts);
        std::memset(to + numbers * shape.element, 0, (some - numbers) * shape.element);
      }
      std::memset(tile.bytes + some_rows * row_bytes, 0, (kTileRows - some_rows) * row_bytes);
      shape.put(some, tile.bytes, row_bytes, target + shape.offset(row, column));
    }
  }
}

void unpack_panels(MatrixLayout layout, Format format, const std::byte* source, int64_t rows,
                   int64_t columns, std::byte* target) {
  const PanelShape shape(layout, format, columns);
  const auto height = static_cast<size_t>(rows), width = static_cast<size_t>(columns);
  Tile tile;
  for (size_t row = 0; row < height; row += kTileRows) {
    const size_t some_rows = std::min(kTileRows, height - row);
    for (size_t column = 0; column < width; column += kTileColumns) {
      const size_t some = std::min(kTileColumns, shape.columns - column);
      const size_t row_bytes = some * shape.element;
      const size_t numbers = std::min(some, width - column);
      shape.take(some, source + shape.offset(row, column), tile.bytes, row_bytes);
      for (size_t r = 0; r < some_rows; ++r) {
        std::memcpy(target + ((row + r) * width + column) * shape.element,
                    tile.bytes + r * row_bytes, numbers * shape.element);
      }
    }
  }
}

}  // namespace spillway
