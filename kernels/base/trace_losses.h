// What the end of the program needs to know of its traces: a trace is written when its owner is
// destroyed, where nobody is left to take a Status.
#pragma once

#include <cstdint>

namespace spillway {

// The traces of this process that could not be written whole, each of which was told of on stderr.
// Never goes back, like the error flag of a C stream. Any thread.
int64_t incomplete_traces();

}  // namespace spillway
