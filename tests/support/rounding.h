// What number formats keep of float32 values.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/kv_layout.h"

namespace spillway::test {

inline std::vector<std::byte> bytes_of(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * dtype_bytes(dtype));
  convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), dtype,
                   bytes.data(), values.size());
  return bytes;
}

inline std::vector<float> floats_of(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / dtype_bytes(dtype));
  convert_elements(dtype, bytes.data(), DType::kF32, reinterpret_cast<std::byte*>(values.data()),
                   values.size());
  return values;
}

// Rounded to nearest even.
inline std::vector<float> rounded(DType dtype, const std::vector<float>& values) {
  return floats_of(dtype, bytes_of(dtype, values));
}

// How far attention over a cache in this format may be off its definition, in float32: decode steps
// over packed rows round queries and weights to 16 bits (cpu/attention_codes.h), as prompts over
// 8-bit ones do (cpu/attention_int16.h), and matrix units multiply numbers of about as many
// (cpu/attention_amx.h).
inline double attention_error(Format format) {
  if (format == Format::kF32) return 2e-5;
  return is_quantized(format) ? 3e-4 : 2e-4;
}

// A head's row as the cache gives it back; 4-bit, too.
inline std::vector<float> cached_row(Format format, const std::vector<float>& row) {
  if (!is_quantized(format)) return rounded(element_of(format), row);
  std::vector<std::byte> bytes(format_row_bytes(format, static_cast<int64_t>(row.size())));
  std::vector<float> values(row.size());
  pack_quantized_row(format, row, bytes.data());
  unpack_quantized_row(format, bytes.data(), values);
  return values;
}

}  // namespace spillway::test
