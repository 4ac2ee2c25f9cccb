// `spillway serve` as a command: opens the model, then serves it (serve.h).
#pragma once

#include "server/cli/common/served_model.h"
#include "server/cli/flags/command_line.h"
#include "server/cli/serve/serve.h"

namespace spillway {

Command serve_command(const OpenModel& open);

}  // namespace spillway
