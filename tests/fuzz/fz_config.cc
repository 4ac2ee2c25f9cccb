// config.json and generation_config.json (behind a NUL byte): any text is read or refused, and an
// accepted shape is one that everything else may rely on.
#include <cstdint>

#include "kernels/base/weights.h"
#include "offload/convert/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t split = std::min(text.find('\0'), text.size());
  const std::string_view generation = text.substr(std::min(split + 1, text.size()));
  const auto config = parse_hf_config(text.substr(0, split), generation, "fuzz");
  if (!config.ok()) return 0;
  SPILLWAY_CHECK(validate(config.value().shape).ok());
  SPILLWAY_CHECK(parameter_count(config.value().shape) > 0);
  return 0;
}
