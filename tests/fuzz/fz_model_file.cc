// The superblock and the table of a packed file, past their checksums: a table that is accepted may
// be relied on. Input: u64 end of the slabs, u32 bytes of JSON, then the table.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "offload/model_file/model_file_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  if (size >= kSuperblockBytes) {
    std::array<std::byte, kSuperblockBytes> block;
    std::memcpy(block.data(), data, block.size());
    static_cast<void>(decode_superblock(block).ok());
  }
  if (size < 12) return 0;
  uint64_t slabs_end = 0;
  uint32_t json_bytes = 0;
  std::memcpy(&slabs_end, data, 8);
  std::memcpy(&json_bytes, data + 8, 4);
  const std::string_view text(reinterpret_cast<const char*>(data) + 12, size - 12);
  const auto table = decode_table(text, json_bytes, slabs_end);
  if (!table.ok()) return 0;
  for (const TensorInfo& tensor : table.value().tensors) {
    int64_t rows = 0;
    for (uint32_t i = 0; i < tensor.slab_count; ++i) {
      const int64_t slab_rows = tensor.rows_in_slab(i);
      const SlabInfo& slab = table.value().slabs.at(tensor.first_slab + i);
      const size_t bytes =
          packed_bytes(tensor.layout, tensor.format, slab_rows, tensor.spec.columns);
      SPILLWAY_CHECK(slab_rows > 0 && tensor.offset_in_slab <= slab.bytes);
      SPILLWAY_CHECK(bytes <= slab.bytes - tensor.offset_in_slab);
      SPILLWAY_CHECK(slab.offset + slab.bytes <= slabs_end);
      rows += slab_rows;
    }
    SPILLWAY_CHECK(rows == tensor.spec.rows);
  }
  // What was accepted is written back and read the same.
  size_t again_json = 0;
  const std::string again = encode_table(table.value(), &again_json);
  SPILLWAY_CHECK(decode_table(again, again_json, slabs_end).ok());
  return 0;
}
