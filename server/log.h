// The one log of the program: a line on stderr with its time and level,
//
//   [2026-05-04 17:03:21.512] [error] /v1/completions: read model.spill at 4096: Input/output error
//
// stdout is reserved for a command's own output. A line that repeats within seconds (every sequence
// of a failed sweep reports the same) is counted instead of written. Any thread; never fails.
#pragma once

#include <string_view>

namespace spillway {

void log_info(std::string_view text);
void log_warning(std::string_view text);
void log_error(std::string_view text);

}  // namespace spillway
