#include "server/config/plan_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/config/json_settings.h"

namespace spillway {

namespace {

constexpr const char* kSettings[] = {
    "device",      "device-memory", "host-memory", "disk-memory", "weights",   "kv",
    "activations", "block",         "micro-batch", "format",      "kv-format", "kv-rule",
    "kv-heavy",    "kv-recent",     "kv-sink",     "kv-ratio-of", "attention", "q4-compute"};

bool known(const std::string& name) {
  return std::find(std::begin(kSettings), std::end(kSettings), name) != std::end(kSettings);
}

}  // namespace

Status apply_plan_file(const std::string& path, Settings& settings) {
  const std::string file = "--plan " + path;
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text, read_json_text(path, file));
  return apply_plan_text(text, file, settings);
}

namespace {

// Whether a stronger source gives `owner` another value than the plan does (Settings::qualify).
bool overridden(const Settings& settings, const std::string& owner, const nlohmann::json& plan) {
  if (owner.empty()) return false;
  std::string member = owner;
  std::replace(member.begin(), member.end(), '-', '_');
  const auto planned = plan.find(member);
  const Setting& setting = *settings.find(owner);
  return setting.source != SettingSource::kDefault && planned != plan.end() &&
         planned->is_string() && *planned != setting.value;
}

}  // namespace

Status apply_plan_text(const std::string& text, const std::string& file, Settings& settings) {
  SPILLWAY_ASSIGN_OR_RETURN(const nlohmann::json plan,
                            json_object(text, file, "what `spillway plan --output` writes"));
  const auto version = plan.find("version");
  if (version == plan.end() || !version->is_number_integer() || *version != kPlanVersion) {
    return invalid_argument(file + ": version " +
                            (version == plan.end() ? "is missing" : version->dump().substr(0, 64)) +
                            "; this program reads version " + std::to_string(kPlanVersion));
  }
  for (const auto& [member, value] : plan.items()) {
    if (member == "version" || member == "model") continue;
    std::string name = member;
    std::replace(name.begin(), name.end(), '_', '-');
    const std::string where = file + ": " + member.substr(0, 64);
    if (!known(name)) return invalid_argument(where + ": a plan has no such member");
    if (value.is_null()) continue;
    SPILLWAY_ASSIGN_OR_RETURN(const std::string as_flag, setting_text(value, where));
    const Setting* setting = settings.find(name);
    if (setting == nullptr || setting->source != SettingSource::kDefault) continue;
    if (overridden(settings, setting->of, plan)) continue;
    SPILLWAY_RETURN_IF_ERROR(settings.set(name, as_flag, SettingSource::kPlan, where));
  }
  return {};
}

}  // namespace spillway
