// The number formats of GGUF tensors: plain numbers, and quantised ones in blocks that share
// scales. A block is expanded to float32 to the bit as the reference does (PyPI's gguf,
// quants.dequantize). Constant data and pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/dtype.h"
#include "kernels/base/status.h"
#include "offload/convert/byte_source.h"

namespace spillway {

// A format that is read. Rows are whole blocks.
struct GgufBlockFormat {
  std::string_view name;       // As ggml spells it: "Q4_K".
  uint32_t id = 0;             // In a tensor's description.
  uint32_t elements = 0;       // Numbers per block; 1 for plain formats.
  uint32_t bytes = 0;          // Bytes per block.
  std::optional<DType> plain;  // The type of plain numbers; empty: quantised.

  // Expands `count` blocks to count * elements numbers. No alignment of `source`.
  void (*expand)(const std::byte* source, size_t count, float* target) = nullptr;
};

// The format of that id; null: unknown or not read.
const GgufBlockFormat* gguf_block_format(uint32_t id);

// ggml's name of a format, read or not: "IQ2_XXS", "type 77".
std::string gguf_type_name(uint32_t id);

// The names of all formats that are read: "F32, F16, ...".
std::string gguf_block_format_names();

// Fills `target` with the bytes of the float32 numbers that the blocks at `first_block` of `source`
// stand for, from byte `offset` of these numbers on. Blocks.
Status read_expanded(const ByteSource& source, uint64_t first_block, const GgufBlockFormat& format,
                     uint64_t offset, std::span<std::byte> target);

}  // namespace spillway
