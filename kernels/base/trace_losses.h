// Traces that could not be written, for the end of the program: a trace is written in a destructor,
// which cannot return a Status.
#pragma once

#include <cstdint>

namespace spillway {

// Number of this process' traces that could not be written completely, each reported on stderr.
// Never decreases, like the error flag of a C stream. Any thread.
int64_t incomplete_traces();

}  // namespace spillway
