// A .bin file: any bytes are read or refused; members and tensors lie in the file and never
// overlap.
#include <algorithm>
#include <cstdint>

#include "offload/convert/torch_reader.h"
#include "offload/convert/zip_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const auto source = memory_source("fuzz", {bytes, bytes + size});
  if (const auto members = read_zip(*source); members.ok()) {
    uint64_t end = 0;
    for (const ZipMember& member : members.value()) {
      SPILLWAY_CHECK(member.offset >= end && member.offset <= size);
      SPILLWAY_CHECK(member.bytes <= size - member.offset);
      end = member.offset + member.bytes;
    }
  }
  if (const auto file = read_torch(*source); file.ok()) {
    for (const StoredTensor& tensor : file.value().tensors) {
      const TorchRecord& record = file.value().records.at(tensor.record.value());
      SPILLWAY_CHECK(tensor.offset >= record.offset);
      SPILLWAY_CHECK(tensor.offset + tensor.bytes <= record.offset + record.bytes);
    }
  }
  return 0;
}
