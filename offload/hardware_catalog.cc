#include "offload/hardware_catalog.h"

#include "offload/config_files.h"
#include "offload/io/file.h"
#include "policy/hardware_json.h"

namespace spillway {

namespace {

// The file `name`, or the one of that name in configs/hardware.
Result<ConfigFile> read_hardware_file(const std::string& name, std::string_view what,
                                      uint64_t bytes_max) {
  if (name.find('/') == std::string::npos && !name.ends_with(".json")) {
    return read_config_file("hardware", name, what, bytes_max);
  }
  SPILLWAY_ASSIGN_OR_RETURN(std::string text, read_small_file(name, bytes_max));
  return ConfigFile{name, std::move(text)};
}

}  // namespace

Result<HardwareProfile> find_hardware_profile(const std::string& name) {
  SPILLWAY_ASSIGN_OR_RETURN(const ConfigFile file,
                            read_hardware_file(name, "hardware profile", kHardwareBytesMax));
  return parse_hardware_profile(file.text, file.path);
}

Result<FlexgenHardware> find_flexgen_hardware(const std::string& name) {
  SPILLWAY_ASSIGN_OR_RETURN(
      const ConfigFile file,
      read_hardware_file(name, "set of FlexGen's hardware constants", kFlexgenHardwareBytesMax));
  return parse_flexgen_hardware(file.text, file.path);
}

}  // namespace spillway
