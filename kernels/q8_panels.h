// Matrices of Format::kQ8 (base/quantized_rows.h) in kPanels16 (weight_layout.h): panels of 16
// outputs, each
//
//   float32 scale[16]            of the 16 outputs
//   uint8 code[C / 4][16][4]     code[q][r][i]: code + 128 of output r at input 4 q + i
//
// with C the columns rounded up to 64. Codes are stored unsigned, as the operand that dot products
// of 8-bit integers take so (VPDPBUSD; the activations are the signed one), and 16 quads of inputs
// are a tile of AMX. What stands for zero is 128: so is the padding of inputs. Outputs that do not
// exist have the scale 0, whatever their codes. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/dtype.h"
#include "kernels/base/format.h"

namespace spillway {

constexpr int64_t kQ8PanelRows = 16;
constexpr int64_t kQ8ColumnMultiple = 64;
constexpr int64_t kQ8QuadBytes = kQ8PanelRows * 4;  // Four inputs of a panel's outputs
constexpr size_t kQ8ScaleBytes = kQ8PanelRows * sizeof(float);
constexpr uint8_t kQ8Zero = 128;

// Bytes of a panel.
constexpr size_t q8_panel_bytes(int64_t columns) {
  const int64_t padded = (columns + kQ8ColumnMultiple - 1) / kQ8ColumnMultiple * kQ8ColumnMultiple;
  return kQ8ScaleBytes + static_cast<size_t>(padded * kQ8PanelRows);
}

// A panel in memory.
struct Q8Panel {
  const float* scales;   // [16]
  const uint8_t* codes;  // [C / 4][16][4]
};
inline Q8Panel q8_panel(const std::byte* panels, int64_t columns, int64_t index) {
  const std::byte* const at = panels + static_cast<size_t>(index) * q8_panel_bytes(columns);
  return {reinterpret_cast<const float*>(at), reinterpret_cast<const uint8_t*>(at + kQ8ScaleBytes)};
}

// Writes zeros into `count` panels.
void clear_q8_panels(int64_t count, int64_t columns, std::byte* panels);

// Writes row `row` of a matrix: its scale, codes and padding.
void put_q8_row(int64_t row, std::span<const int8_t> codes, float scale, std::byte* panels);

// Reads it and returns its scale.
float take_q8_row(const std::byte* panels, int64_t row, std::span<int8_t> codes);

}  // namespace spillway
