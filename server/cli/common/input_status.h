// Exit status of the commands whose input is a model's files.
#pragma once

#include <string_view>

#include "kernels/base/status.h"

namespace spillway {

// As report() of command_line.h, but corrupt bytes are bad input (2) here: they are what the
// command was asked to look at.
int report_input(std::string_view command, const Status& status);

}  // namespace spillway
