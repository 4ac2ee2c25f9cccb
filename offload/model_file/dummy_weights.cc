#include "offload/model_file/dummy_weights.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/base/quantized_rows.h"
#include "kernels/q8_panels.h"
#include "kernels/weight_layout.h"

namespace spillway {

namespace {

constexpr float kDeviation = 0.02f;
constexpr float kWidth = kDeviation * 1.7320508f;  // Uniform on +-w has deviation w / sqrt(3).

void fill_floats(DType type, uint64_t seed, std::span<std::byte> target) {
  const size_t element = dtype_bytes(type);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i + 4 * element <= target.size(); i += 4 * element) {
    uint64_t bits = random();
    float values[4];
    for (float& value : values) {
      value = (static_cast<float>(bits & 0xffff) / 32768.0f - 1.0f) * kWidth;
      bits >>= 16;
    }
    convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(values), type,
                     target.data() + i, 4);
  }
}

// Fills groups with random bits under one scale and minimum: the quantised values lie evenly over
// +-kWidth.
void fill_quantized(MatrixLayout layout, Format format, int64_t rows, int64_t columns,
                    uint64_t seed, std::span<std::byte> target) {
  const FormatTraits& traits = format_traits(format);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < target.size(); i += sizeof(uint64_t)) {
    const uint64_t bits = random();
    std::memcpy(target.data() + i, &bits, std::min(sizeof(bits), target.size() - i));
  }
  const uint16_t scale = f32_to_f16(2 * kWidth / static_cast<float>((1 << traits.bits) - 1));
  const uint16_t minimum = f32_to_f16(-kWidth);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t group = 0; group * traits.group < columns; ++group) {
      const ScaleOffsets at = scale_offsets(layout, format, columns, row, group);
      std::memcpy(target.data() + at.scale, &scale, sizeof(scale));
      std::memcpy(target.data() + at.minimum, &minimum, sizeof(minimum));
    }
  }
}

// The same of rows with one scale, whose codes lie evenly over -127 to 127.
void fill_q8(MatrixLayout layout, int64_t rows, int64_t columns, uint64_t seed,
             std::span<std::byte> target) {
  constexpr float kScale = kWidth / kQ8CodeMax;
  constexpr int kCodes = 255;
  std::mt19937_64 random(seed);
  std::vector<int8_t> codes(static_cast<size_t>(columns));
  if (layout != MatrixLayout::kRows) {
    clear_q8_panels(static_cast<int64_t>(target.size() / q8_panel_bytes(columns)), columns,
                    target.data());
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < codes.size(); i += 4) {
      uint64_t bits = random();
      for (size_t j = i; j < std::min(i + 4, codes.size()); ++j, bits >>= 16) {
        codes[j] = static_cast<int8_t>(static_cast<int>((bits & 0xffff) * kCodes >> 16) - 127);
      }
    }
    if (layout != MatrixLayout::kRows) {
      put_q8_row(row, codes, kScale, target.data());
      continue;
    }
    std::byte* const to = target.data() + row_scale_offset(layout, columns, row);
    std::memcpy(to, &kScale, sizeof(kScale));
    std::memcpy(to + sizeof(kScale), codes.data(), codes.size());
  }
}

bool is_norm_weight(WeightRole role) {
  return role == WeightRole::kAttentionNormWeight || role == WeightRole::kMlpNormWeight ||
         role == WeightRole::kFinalNormWeight;
}

void fill_rows(const TensorInfo& tensor, uint32_t slab, uint64_t seed,
               std::span<std::byte> target) {
  const int64_t rows = tensor.rows_in_slab(slab - tensor.first_slab);
  const int64_t columns = tensor.spec.columns;
  const auto packed = target.first(packed_bytes(tensor.layout, tensor.format, rows, columns));
  if (tensor.format == Format::kQ8) {
    fill_q8(tensor.layout, rows, columns, seed, packed);
  } else if (is_quantized(tensor.format)) {
    fill_quantized(tensor.layout, tensor.format, rows, columns, seed, packed);
  } else {
    fill_floats(element_of(tensor.format), seed, packed);
  }
}

}  // namespace

void fill_dummy_slab(const ModelFileTable& table, uint32_t slab, uint64_t seed,
                     std::span<std::byte> target) {
  SPILLWAY_CHECK(slab < table.slabs.size() && target.size() == table.slabs[slab].bytes);
  std::memset(target.data(), 0, target.size());
  for (const TensorInfo& tensor : table.tensors) {
    if (slab < tensor.first_slab || slab >= tensor.first_slab + tensor.slab_count) continue;
    if (tensor.spec.kind != WeightKind::kVector) {
      fill_rows(tensor, slab, seed ^ (uint64_t{slab} << 32), target);
    } else if (is_norm_weight(tensor.spec.role)) {
      auto* values = reinterpret_cast<float*>(target.data() + tensor.offset_in_slab);
      std::fill_n(values, tensor.spec.elements(), 1.0f);
    }
  }
}

}  // namespace spillway
