#include "server/cli/flags/plan_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/json_reader.h"
#include "kernels/base/strict_json.h"
#include "scheduler/planning/plan_json.h"

namespace spillway {

namespace {

constexpr const char* kSettings[] = {"device",         "device-memory",  "host-memory",
                                     "disk-memory",    "weights",        "kv",
                                     "activations",    "block",          "micro-batch",
                                     "prefill-tokens", "prefill-target", "format",
                                     "kv-format",      "kv-rule",        "kv-heavy",
                                     "kv-recent",      "kv-keep",        "kv-sink",
                                     "kv-ratio-of",    "kv-snap",        "attention",
                                     "q4-compute",     "no-overlap",     "quantized-compute",
                                     "ranks"};

bool known(const std::string& name) {
  return std::find(std::begin(kSettings), std::end(kSettings), name) != std::end(kSettings);
}

// "micro_batch" and "micro-batch" are the same member.
std::string setting_name(std::string member) {
  std::replace(member.begin(), member.end(), '_', '-');
  return member;
}

// Whether a stronger source overrides the plan's value of `owner` (Settings::qualify).
bool overridden(const Settings& settings, const std::string& owner, const nlohmann::json& plan) {
  if (owner.empty()) return false;
  const Setting& setting = *settings.find(owner);
  if (setting.source == SettingSource::kDefault) return false;
  const auto items = plan.items();
  return std::any_of(items.begin(), items.end(), [&](const auto& item) {
    return setting_name(item.key()) == owner && !item.value().is_null() &&
           item.value() != setting.value;
  });
}

}  // namespace

Status apply_plan_file(const std::string& path, Settings& settings) {
  const std::string file = "--plan " + path;
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text, read_json_text(path, file));
  return apply_plan_text(text, file, settings);
}

Status apply_plan_text(const std::string& text, const std::string& file, Settings& settings) {
  SPILLWAY_ASSIGN_OR_RETURN(const nlohmann::json plan,
                            parse_json_object(text, file, {.comments = true}));
  JsonReader reader(plan, file);
  reader.version(kPlanVersion, "a plan", "'spillway plan --output' writes one");
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  for (const auto& [member, value] : plan.items()) {
    if (member == "version" || member == "model") continue;
    const std::string name = setting_name(member);
    const std::string where = file + ": " + member.substr(0, 64);
    if (!known(name)) return invalid_argument(where + ": a plan has no such member");
    if (value.is_null()) continue;
    SPILLWAY_ASSIGN_OR_RETURN(const std::string as_flag, setting_text(value, where));
    const Setting* setting = settings.find(name);
    if (setting == nullptr || setting->source != SettingSource::kDefault) continue;
    if (overridden(settings, setting->of, plan)) continue;
    if (!setting->twin.empty() && settings.find(setting->twin)->source > SettingSource::kPlan) {
      continue;
    }
    SPILLWAY_RETURN_IF_ERROR(settings.set(name, as_flag, SettingSource::kPlan, where));
  }
  return {};
}

}  // namespace spillway
