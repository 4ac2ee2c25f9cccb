// Plan files: any text is applied or refused, and what is applied can be shown.
#include <cstdint>
#include <string>

#include "kernels/base/check.h"
#include "scheduler/planning/engine_flags.h"
#include "server/cli/flags/engine_settings.h"
#include "server/cli/flags/plan_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  EngineFlags flags;
  Settings settings;
  add_engine_flags(settings, &flags);
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (!apply_plan_text(text, "fuzz", settings).ok()) return 0;
  for (const Setting& setting : settings.all()) {
    const bool known =
        setting.source == SettingSource::kDefault || setting.source == SettingSource::kPlan;
    SPILLWAY_CHECK(known);
  }
  if (flags.weights) {
    SPILLWAY_CHECK((*flags.weights)[0] + (*flags.weights)[1] + (*flags.weights)[2] == 100);
  }
  return 0;
}
