// What --help prints. Pure functions of the command list.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/cli/flags/command_line.h"

namespace spillway {

std::string program_help(std::span<const Command> commands);
std::string command_help(const Command& command);

// The candidate that `word` probably meant, empty when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace spillway
