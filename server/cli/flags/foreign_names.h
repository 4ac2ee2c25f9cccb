// What vLLM, llama.cpp and programs like them call things that are called something else here, for
// people who come from there. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

// One sentence about a flag of another program ("--dtype", "-ngl"); empty: an unknown one.
std::string foreign_flag_hint(std::string_view flag);

// Likewise about a command ("chat", "pull").
std::string foreign_command_hint(std::string_view command);

}  // namespace spillway
