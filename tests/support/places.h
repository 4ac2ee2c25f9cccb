// Where tests find the project's files and the program. An environment variable overrules what the
// build wrote in, so that a bundle of built tests runs on another machine (scripts/gpu_check.sh).
#pragma once

#include <string>

namespace spillway::test {

// $SPILLWAY_SOURCE, or the source tree that was built.
std::string source_directory();

// $SPILLWAY_PROGRAM, or the binary of the same build.
std::string program();

// Runs a line of the shell; its exit status, -1 where a signal ended it.
int exit_of(const std::string& command);

}  // namespace spillway::test
