// Reads the header of a GGUF file, versions 2 and 3, strictly: metadata, descriptions of tensors,
// and their places, which tile the data. Pure function of the source, any thread.
// Source: the format's specification, ggml's docs/gguf.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/byte_source.h"
#include "offload/convert/gguf_blocks.h"
#include "offload/convert/gguf_metadata.h"

namespace spillway {

struct GgufTensor {
  std::string name;  // As in the file: "blk.0.attn_q.weight".
  const GgufBlockFormat* format = nullptr;
  std::vector<int64_t> shape;  // Row-major, the row's length last; at most four sizes.
  uint64_t offset = 0;         // In the file.
  uint64_t bytes = 0;          // In the file: whole blocks.
};

struct GgufHeader {
  uint32_t version = 0;
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // In the order of their data.
  uint64_t data_offset = 0;         // Where the header ends and data begins.
};

// kInvalidArgument and kCorruption name the file, the key or tensor, the byte and the reason. Reads
// the header only: at most 512 MiB. Blocks.
Result<GgufHeader> read_gguf_header(const ByteSource& source);

}  // namespace spillway
