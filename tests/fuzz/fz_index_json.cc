// A shard index: any text is read or refused; no file name leaves the directory.
#include <cstdint>

#include "offload/convert/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = parse_shard_index(text, "fuzz", ".bin");
  if (!index.ok()) return 0;
  for (const auto& [file, tensors] : index.value()) {
    SPILLWAY_CHECK(file.find('/') == std::string::npos && file != ".." && file != ".");
    SPILLWAY_CHECK(file.ends_with(".bin") && !tensors.empty());
  }
  return 0;
}
