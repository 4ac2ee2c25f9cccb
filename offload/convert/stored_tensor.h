// A tensor as a checkpoint file holds it: a name, a number format, a shape and the place of its
// dense, row-major, little-endian bytes. The result of all format readers. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/status.h"

namespace spillway {

struct GgufBlockFormat;  // gguf_blocks.h

// A number format of checkpoints; only those with a `dtype` are allowed for weights.
struct StoredFormat {
  std::string_view name;  // As safetensors spells it: "BF16".
  uint32_t bits = 0;      // Bits per element
  std::optional<DType> dtype;
};

// The format of that name; null: unknown.
const StoredFormat* stored_format_of_name(std::string_view name);

constexpr size_t kRankMax = 8;

struct StoredTensor {
  std::string name;
  const StoredFormat* format = nullptr;  // Never null in a reader's output.
  std::vector<int64_t> shape;            // At most kRankMax; empty: one number.
  uint64_t offset = 0;                   // In the file.
  uint64_t bytes = 0;                    // By format and shape
  std::optional<uint32_t> record;        // The checksummed record that holds it (torch only).

  // Not null: the file holds blocks of this format from `offset` on, and the bytes of `format`,
  // which is F32, are computed when they are read (GGUF only).
  const GgufBlockFormat* blocks = nullptr;

  // Not 0: the file holds the rows of so many query heads, then of the key heads, then of the value
  // heads; they are read as query, key and value head by head (GPT-NeoX in GGUF).
  uint32_t stacked_heads = 0;
};

std::string shape_text(const std::vector<int64_t>& shape);  // "[50272, 512]"

// The bytes of a tensor of `shape`; nothing when that overflows or is not a whole number.
std::optional<uint64_t> stored_bytes(const StoredFormat& format, const std::vector<int64_t>& shape);

}  // namespace spillway
