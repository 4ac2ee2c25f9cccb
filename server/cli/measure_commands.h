// The commands that measure and predict: `spillway bench`, `spillway eval`, `spillway plan`.
#pragma once

#include "server/cli/flags/command_line.h"

namespace spillway {

Command bench_command();
Command eval_command();
Command plan_command();

}  // namespace spillway
