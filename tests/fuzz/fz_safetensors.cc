// The header of a .safetensors file: any bytes are read or refused, and ranges lie in the file.
#include <cstdint>
#include <cstring>

#include "offload/convert/safetensors_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const auto source = memory_source("fuzz", {bytes, bytes + size});
  for (const bool lenient : {false, true}) {
    const auto result = read_safetensors(*source, {lenient});
    if (!result.ok()) continue;
    uint64_t total = 0;
    for (const StoredTensor& tensor : result.value()) {
      SPILLWAY_CHECK(tensor.offset <= size && tensor.bytes <= size - tensor.offset);
      total += tensor.bytes;
    }
    uint64_t header = 0;
    std::memcpy(&header, data, sizeof(header));
    SPILLWAY_CHECK(total == size - 8 - header);
  }
  return 0;
}
