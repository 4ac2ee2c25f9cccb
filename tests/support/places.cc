#include "tests/support/places.h"

#include <sys/wait.h>

#include <cstdlib>

namespace spillway::test {

std::string source_directory() {
  const char* set = std::getenv("SPILLWAY_SOURCE");
  return set != nullptr ? set : SPILLWAY_SOURCE_DIR;
}

// The only source that knows the folder of its build: objects of the others are the same in every
// build, and the compiler cache finds them.
std::string program() {
  const char* set = std::getenv("SPILLWAY_PROGRAM");
  return set != nullptr ? set : SPILLWAY_BINARY;
}

int exit_of(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace spillway::test
