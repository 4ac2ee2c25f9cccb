// The environment's variables that look like misspelt settings: nothing else would ever tell.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "server/cli/flags/command_line.h"

namespace spillway {

// One sentence each: "SPILLWAY_PROT sets nothing; did you mean SPILLWAY_PORT?". `environment` as
// environ has it: "NAME=value", a null pointer behind the last. Names that resemble no setting may
// be somebody else's and are left alone.
std::vector<std::string> misspelt_variables(std::span<const Command> commands,
                                            const char* const* environment);

}  // namespace spillway
