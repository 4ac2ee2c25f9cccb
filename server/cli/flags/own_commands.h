// The commands that are about the command line itself: help, version, completions. Each reads the
// same list of commands from which --help is made, so that none can go stale. One thread.
#pragma once

#include <vector>

#include "server/cli/flags/command_line.h"

namespace spillway {

// `commands` outlives them, and may grow until one runs.
Command help_command(const std::vector<Command>* commands);
Command version_command();
Command completions_command(const std::vector<Command>* commands);

}  // namespace spillway
