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
#include "kernels/base/quantized.h"
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

  // Of blocks that are groups of 32 codes with a scale and a minimum: the bits of a code, 4 or 5,
  // or 8; and a function that gives the codes of `count` blocks and the scale and minimum of each
  // group. Numbers that these stand for (base/quantized.h) are those of expand() where the file's
  // scales are float16; the K formats' products of two scales are rounded to float16. 0 and null:
  // no such groups (Q6_K has 16 numbers in one).
  int code_bits = 0;
  void (*split)(const std::byte* source, size_t count, uint8_t* codes,
                GroupScale* scales) = nullptr;
};

constexpr int64_t kGgufGroup = 32;  // Codes in a group of split()

// The format that holds a quantised format's blocks: q4_1 for codes of 4 bits, else q8_1.
Format format_of_blocks(const GgufBlockFormat& blocks);

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
