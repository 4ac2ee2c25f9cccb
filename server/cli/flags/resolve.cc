// Resolves settings by precedence: flag, then environment, then configuration file, then plan, then
// default; and reads their values from a JSON file.
#include <cerrno>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "kernels/base/quote.h"
#include "kernels/base/strict_json.h"
#include "server/cli/flags/hints.h"
#include "server/cli/flags/plan_file.h"
#include "server/cli/flags/settings.h"

namespace spillway {

namespace {

constexpr size_t kJsonBytesMax = 1 << 20;

// The value as a flag's text; empty if no flag could have it.
std::string flag_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() || value.is_boolean()) return value.dump();
  if (!value.is_array()) return "";
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i].is_structured()) return "";
    text += (i == 0 ? "" : ",") + flag_text(value[i]);
  }
  return text;
}

// One source's values, by setting.
using Texts = std::map<std::string, std::string>;

// "; did you mean 'host-memory'?", or nothing.
std::string meant_instead(const Settings& settings, const std::string& name) {
  std::vector<std::string> known;
  for (const Setting& setting : settings.all()) known.push_back(setting.name);
  const std::string meant = nearest(name, known);
  return meant.empty() ? "" : "; did you mean '" + meant + "'?";
}

// The file's values as flag texts.
Result<Texts> read_config(const Settings& settings, const SettingInputs& inputs) {
  Texts texts;
  const std::string where = "--config " + inputs.config_file + ": ";
  const std::string file = "--config " + inputs.config_file;
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text, read_json_text(inputs.config_file, file));
  SPILLWAY_ASSIGN_OR_RETURN(const nlohmann::json config,
                            parse_json_object(text, file, {.comments = true}));
  for (const auto& [name, value] : config.items()) {
    if (settings.find(name) == nullptr) {
      if (inputs.known && inputs.known(name)) continue;  // A setting of another command.
      return invalid_argument(where + "no command has a setting " + in_quotes(name) +
                              meant_instead(settings, name));
    }
    if (value.is_null()) continue;
    SPILLWAY_ASSIGN_OR_RETURN(const std::string as_flag, setting_text(value, where + name));
    texts[name] = as_flag;
  }
  return texts;
}

// SPILLWAY_PORT=tcp://10.0.0.1:8000 is what Kubernetes sets in every container beside a Service of
// the name spillway; nobody who sets a port writes that.
bool is_link_of_kubernetes(std::string_view value) {
  return value.starts_with("tcp://");
}

Texts read_environment(const Settings& settings, const SettingInputs& inputs) {
  Texts texts;
  for (const Setting& setting : settings.all()) {
    const std::string variable = setting.environment_name();
    const char* value = inputs.environment ? inputs.environment(variable.c_str()) : nullptr;
    if (value == nullptr || (setting.name == "port" && is_link_of_kubernetes(value))) continue;
    if (*value != '\0' || setting.secret) texts[setting.name] = value;
  }
  return texts;
}

// A source and the sources that it overrides, weakest first.
using Sources = std::span<const Texts* const>;

const std::string* strongest(Sources sources, const std::string& name) {
  for (size_t i = sources.size(); i-- > 0;) {
    const auto found = sources[i]->find(name);
    if (found != sources[i]->end()) return &found->second;
  }
  return nullptr;
}

// Whether the value of `setting` from the last of `seen` still holds among `all`
// (Settings::qualify, Settings::same).
bool holds(const Setting& setting, Sources seen, Sources all) {
  if (strongest(all.subspan(seen.size()), setting.twin) != nullptr) return false;
  const std::string* owner = setting.of.empty() ? nullptr : strongest(seen, setting.of);
  return owner == nullptr || *owner == *strongest(all, setting.of);
}

}  // namespace

Result<std::string> read_json_text(const std::string& path, const std::string& place) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return io_error(place, errno);
  std::string text(kJsonBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kJsonBytesMax) return invalid_argument(place + ": longer than 1 MiB");
  return text;
}

Result<std::string> setting_text(const nlohmann::json& value, const std::string& place) {
  std::string text = flag_text(value);
  if (text.empty() && !value.is_string()) {
    return invalid_argument(place + ": must be a string, a number, true or false, or a " +
                            "list of numbers");
  }
  return text;
}

Status resolve(Settings& settings, const SettingInputs& inputs) {
  Texts file;
  if (!inputs.config_file.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(file, read_config(settings, inputs));
  }
  const Texts environment = read_environment(settings, inputs);
  const Texts* const layers[] = {&file, &environment, &inputs.flags};
  const Sources all = layers;
  for (const Setting& setting : settings.all()) {
    const std::string name = setting.name;
    // A file's value is checked even if it is overridden: it is wrong for the next run.
    if (file.contains(name) && holds(setting, all.first(1), all)) {
      SPILLWAY_RETURN_IF_ERROR(settings.set(name, file[name], SettingSource::kFile,
                                            "--config " + inputs.config_file + ": " + name));
    }
    if (const auto flag = inputs.flags.find(name); flag != inputs.flags.end()) {
      SPILLWAY_RETURN_IF_ERROR(settings.set(name, flag->second, SettingSource::kFlag, "--" + name));
      continue;
    }
    const auto variable = environment.find(name);
    if (variable == environment.end() || !holds(setting, all.first(2), all)) continue;
    SPILLWAY_RETURN_IF_ERROR(settings.set(name, variable->second, SettingSource::kEnvironment,
                                          setting.environment_name()));
  }
  const Setting* plan = settings.find("plan");
  if (plan == nullptr || plan->value.empty()) return {};
  return apply_plan_file(plan->value, settings);
}

}  // namespace spillway
