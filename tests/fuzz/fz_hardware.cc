// Hardware profiles: any text is read or refused, and what is accepted reads back the same.
#include <cstdint>
#include <string>

#include "kernels/base/check.h"
#include "policy/hardware_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto profile = parse_hardware_profile(text, "fuzz");
  if (!profile.ok()) return 0;
  SPILLWAY_CHECK(profile.value().disk.read.front().rate.value > 0);
  const std::string written = hardware_profile_json(profile.value());
  const auto again = parse_hardware_profile(written, "fuzz");
  SPILLWAY_CHECK(again.ok());
  SPILLWAY_CHECK(hardware_profile_json(again.value()) == written);
  return 0;
}
