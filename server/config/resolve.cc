// Settings::resolve: flag, then environment, then configuration file, then plan, then default.
#include <nlohmann/json.hpp>

#include "server/config/json_settings.h"
#include "server/config/plan_file.h"
#include "server/config/settings.h"

namespace spillway {

namespace {

Status apply_config(Settings& settings, const SettingInputs& inputs) {
  const std::string where = "--config " + inputs.config_file + ": ";
  const std::string file = "--config " + inputs.config_file;
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text, read_json_text(inputs.config_file, file));
  SPILLWAY_ASSIGN_OR_RETURN(const nlohmann::json config,
                            json_object(text, file, "{\"threads\": 4, \"host-memory\": \"8GiB\"}"));
  for (const auto& [name, value] : config.items()) {
    if (settings.find(name) == nullptr) {
      if (inputs.known && inputs.known(name)) continue;  // Another command's.
      return invalid_argument(where + "no command has a setting '" + name.substr(0, 64) + "'");
    }
    if (value.is_null()) continue;
    SPILLWAY_ASSIGN_OR_RETURN(const std::string as_flag, setting_text(value, where + name));
    SPILLWAY_RETURN_IF_ERROR(settings.set(name, as_flag, SettingSource::kFile, where + name));
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
  const Setting* plan = settings.find("plan");
  if (plan == nullptr || plan->value.empty()) return {};
  return apply_plan_file(plan->value, settings);
}

}  // namespace spillway
