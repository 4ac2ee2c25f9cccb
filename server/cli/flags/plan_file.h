// The plan file: a JSON object {"version": 1, "model": ..., "weights": [20, 0, 80], "block": 96,
// ...} whose other members are settings of the engine by their flag's name ("micro-batch" may be
// written "micro_batch"). What flag, environment or configuration file say goes before it.
#pragma once

#include <string>

#include "kernels/base/status.h"
#include "server/cli/flags/settings.h"

namespace spillway {

// Sets what still has its default. kInvalidArgument names file and member: unreadable, another
// version, a setting that is none of the engine's or has a wrong value.
Status apply_plan_file(const std::string& path, Settings& settings);

// The same of the file's text; `file` names it in errors.
Status apply_plan_text(const std::string& text, const std::string& file, Settings& settings);

}  // namespace spillway
