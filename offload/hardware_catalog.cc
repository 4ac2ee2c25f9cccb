#include "offload/hardware_catalog.h"

#include "offload/config_files.h"
#include "offload/file.h"
#include "policy/hardware_json.h"

namespace spillway {

Result<HardwareProfile> find_hardware_profile(const std::string& name) {
  if (name.find('/') != std::string::npos || name.ends_with(".json")) {
    SPILLWAY_ASSIGN_OR_RETURN(const std::string text, read_small_file(name, kHardwareBytesMax));
    return parse_hardware_profile(text, name);
  }
  SPILLWAY_ASSIGN_OR_RETURN(
      const ConfigFile file,
      read_config_file("hardware", name, "hardware profile", kHardwareBytesMax));
  return parse_hardware_profile(file.text, file.path);
}

}  // namespace spillway
