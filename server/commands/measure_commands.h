// The commands that measure: `spillway bench` and `spillway eval`.
#pragma once

#include "server/config/command_line.h"

namespace spillway {

Command bench_command();
Command eval_command();

}  // namespace spillway
