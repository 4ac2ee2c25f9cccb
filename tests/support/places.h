// Where tests find the project's files and the program. An environment variable overrules what the
// build wrote in, so that a bundle of built tests runs on another machine (scripts/gpu_check.sh).
#pragma once

#include <cstdlib>
#include <string>

namespace spillway::test {

// $SPILLWAY_SOURCE, or the source tree that was built.
inline std::string source_directory() {
  const char* set = std::getenv("SPILLWAY_SOURCE");
  return set != nullptr ? set : SPILLWAY_SOURCE_DIR;
}

// $SPILLWAY_PROGRAM, or the binary of the same build.
#ifdef SPILLWAY_BINARY
inline std::string program() {
  const char* set = std::getenv("SPILLWAY_PROGRAM");
  return set != nullptr ? set : SPILLWAY_BINARY;
}
#endif

// Runs a line of the shell; its exit status, -1 where a signal ended it.
inline int exit_of(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace spillway::test
