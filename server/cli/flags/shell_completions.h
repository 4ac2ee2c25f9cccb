// Scripts that complete spillway's command line in a shell, made from the tables of commands and
// settings from which --help is made. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/cli/flags/command_line.h"

namespace spillway {

enum class Shell : uint8_t { kBash, kZsh, kFish };

std::vector<std::string> shell_names();
std::optional<Shell> shell_of_name(std::string_view name);

// The script. Commands, their other names and flags, the values of flags that have few, and files
// and folders where a flag or an argument takes one.
std::string completions(std::span<const Command> commands, Shell shell);

}  // namespace spillway
