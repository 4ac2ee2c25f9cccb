// Settings::resolve: flag, then environment, then configuration file, then default.
#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "server/config/settings.h"

namespace spillway {

namespace {

constexpr size_t kConfigBytesMax = 1 << 20;

Result<nlohmann::json> read_config(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return io_error("--config " + path, errno);
  std::string text(kConfigBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kConfigBytesMax) {
    return invalid_argument("--config " + path + ": longer than 1 MiB");
  }
  nlohmann::json config = nlohmann::json::parse(text, nullptr, false, true);
  if (!config.is_object()) {
    return invalid_argument("--config " + path +
                            ": not a JSON object such as {\"threads\": 4, \"host-memory\": "
                            "\"8GiB\"}");
  }
  return config;
}

// 8, "8GiB", true, [20, 80, 0] as a flag would carry them; empty for anything else.
std::string flag_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() || value.is_boolean()) return value.dump();
  if (!value.is_array()) return "";
  std::string text;
  for (const nlohmann::json& item : value) {
    if (item.is_structured()) return "";
    text += (text.empty() ? "" : ",") + flag_text(item);
  }
  return text;
}

Status apply_config(Settings& settings, const SettingInputs& inputs) {
  const std::string where = "--config " + inputs.config_file + ": ";
  SPILLWAY_ASSIGN_OR_RETURN(const nlohmann::json config, read_config(inputs.config_file));
  for (const auto& [name, value] : config.items()) {
    if (settings.find(name) == nullptr) {
      if (inputs.known && inputs.known(name)) continue;  // Another command's.
      return invalid_argument(where + "no command has a setting '" + name.substr(0, 64) + "'");
    }
    if (value.is_null()) continue;
    const std::string text = flag_text(value);
    if (text.empty() && !value.is_string()) {
      return invalid_argument(where + name + ": must be a string, a number, true or false, or a " +
                              "list of numbers");
    }
    SPILLWAY_RETURN_IF_ERROR(settings.set(name, text, SettingSource::kFile, where + name));
  }
  return {};
}

}  // namespace

Status resolve(Settings& settings, const SettingInputs& inputs) {
  if (!inputs.config_file.empty()) SPILLWAY_RETURN_IF_ERROR(apply_config(settings, inputs));
  for (const Setting& setting : settings.all()) {
    const std::string name = setting.name;
    if (const auto flag = inputs.flags.find(name); flag != inputs.flags.end()) {
      SPILLWAY_RETURN_IF_ERROR(settings.set(name, flag->second, SettingSource::kFlag, "--" + name));
      continue;
    }
    const std::string variable = setting.environment_name();
    const char* value = inputs.environment ? inputs.environment(variable.c_str()) : nullptr;
    if (value == nullptr || *value == '\0') continue;
    SPILLWAY_RETURN_IF_ERROR(settings.set(name, value, SettingSource::kEnvironment, variable));
  }
  return {};
}

}  // namespace spillway
