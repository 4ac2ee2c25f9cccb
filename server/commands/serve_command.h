// `spillway serve` as a command: opens the model, then serves it (serve.h).
#pragma once

#include "server/commands/serve.h"
#include "server/commands/served_model.h"
#include "server/config/command_line.h"

namespace spillway {

Command serve_command(const OpenModel& open);

}  // namespace spillway
