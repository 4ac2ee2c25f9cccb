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

// One sentence about a flag of vLLM or llama.cpp ("--dtype", "-ngl"), for users of those programs;
// empty: an unknown flag.
std::string foreign_flag_hint(std::string_view flag);

// The environment's variables that look like misspelt settings, which would otherwise go unnoticed,
// a sentence each: "SPILLWAY_PROT sets nothing; did you mean SPILLWAY_PORT?". `environment` as
// environ has it: "NAME=value", a null pointer behind the last. Names that resemble no setting may
// belong to other programs and are ignored.
std::vector<std::string> misspelt_variables(std::span<const Command> commands,
                                            const char* const* environment);

}  // namespace spillway
