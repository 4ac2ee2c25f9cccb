// The plan file: a JSON object {"version": 1, "model": ..., "weights": [20, 0, 80], "block": 96,
// ...} whose other members are settings of the engine by their flag's name ("micro-batch" may be
// written "micro_batch"). Flags, environment and configuration file take precedence over it.
#pragma once

#include <string>

#include "kernels/base/status.h"
#include "server/cli/flags/settings.h"

namespace spillway {

// Sets the settings that still have their defaults. kInvalidArgument names file and member:
// unreadable, another version, or not a setting of the engine or a wrong value.
Status apply_plan_file(const std::string& path, Settings& settings);

// Applies the file's text; `file` names it in errors.
Status apply_plan_text(const std::string& text, const std::string& file, Settings& settings);

}  // namespace spillway
