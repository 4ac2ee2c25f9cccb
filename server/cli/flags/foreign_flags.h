// What the flags of vLLM and llama.cpp are called here, for people who come from there.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

// One sentence about a flag ("--dtype", "-ngl") that another server has; empty: not one we know of.
std::string foreign_flag_hint(std::string_view flag);

}  // namespace spillway
