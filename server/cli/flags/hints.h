// Suggestions for unknown words. Pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/cli/flags/command_line.h"

namespace spillway {

// The candidate most similar to `word`, empty when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// The environment's variables SPILLWAY_... that set nothing, which would otherwise go unnoticed, a
// sentence each: "SPILLWAY_PROT sets nothing; did you mean SPILLWAY_PORT?". `environment` as
// environ has it: "NAME=value", a null pointer behind the last. Those that Kubernetes makes for a
// Service called spillway (SPILLWAY_SERVICE_HOST, SPILLWAY_PORT_8000_TCP) are nobody's mistake and
// ignored.
std::vector<std::string> unknown_variables(std::span<const Command> commands,
                                           const char* const* environment);

}  // namespace spillway
