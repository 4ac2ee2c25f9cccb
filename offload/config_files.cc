#include "offload/config_files.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "kernels/base/quote.h"
#include "offload/convert/hf_config.h"
#include "offload/io/file.h"
#include "policy/hardware_json.h"

namespace spillway {

namespace {

// Whether the name has only characters of plain file names, so that it cannot leave the folder.
bool is_plain(const std::string& name) {
  return !name.empty() && name.size() <= 64 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
                  c == '_';
         });
}

std::string known_names(std::string_view folder) {
  std::set<std::string> names;
  for (const std::string& directory : config_directories()) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(directory + "/" + std::string(folder), error),
         end;
         !error && entry != end; entry.increment(error)) {
      if (entry->path().extension() == ".json") names.insert(entry->path().stem().string());
    }
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none; is SPILLWAY_CONFIGS right?" : text;
}

struct ConfigFile {
  std::string path, text;
};

// Reads FOLDER/NAME.json of the first directory that has it. kNotFound, for a `what` ("model
// shape"), lists the known names; a name with anything but lower-case letters, digits, '-', '.' and
// '_' is unknown.
Result<ConfigFile> read_config_file(std::string_view folder, const std::string& name,
                                    std::string_view what, uint64_t bytes_max) {
  if (is_plain(name)) {
    for (const std::string& directory : config_directories()) {
      const std::string path = directory + "/" + std::string(folder) + "/" + name + ".json";
      Result<std::string> text = read_small_file(path, bytes_max);
      if (text.status().code() == Code::kNotFound) continue;
      if (!text.ok()) return text.status();
      return ConfigFile{path, std::move(text).value()};
    }
  }
  return not_found("no " + std::string(what) + " " + in_quotes(name) +
                   "; known are: " + known_names(folder));
}

// Reads the file `name`, or the one of that name in configs/hardware.
Result<ConfigFile> read_hardware_file(const std::string& name, std::string_view what,
                                      uint64_t bytes_max) {
  if (name.find('/') == std::string::npos && !name.ends_with(".json")) {
    return read_config_file("hardware", name, what, bytes_max);
  }
  SPILLWAY_ASSIGN_OR_RETURN(std::string text, read_small_file(name, bytes_max));
  return ConfigFile{name, std::move(text)};
}

}  // namespace

std::vector<std::string> config_directories() {
  std::vector<std::string> directories;
  if (const char* set = std::getenv("SPILLWAY_CONFIGS"); set != nullptr && *set != '\0') {
    directories.emplace_back(set);
  }
  std::error_code error;
  const auto binary = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const auto folder = binary.parent_path();
    directories.push_back(folder / "../../configs");
    directories.push_back(folder / "../share/spillway/configs");
  }
  directories.emplace_back(SPILLWAY_SOURCE_DIR "/configs");
  return directories;
}

Result<ModelShape> find_model_shape(const std::string& name) {
  SPILLWAY_ASSIGN_OR_RETURN(const ConfigFile file,
                            read_config_file("models", name, "model shape", kConfigBytesMax));
  Result<HfConfig> config = parse_hf_config(file.text, "", name);
  if (!config.ok()) return config.status().at(file.path);
  return config.value().shape;
}

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
