// For test cases that this machine cannot run, or not whole: no GPU, no io_uring, a file that is
// not there. Catch2 2 has no such thing.
#pragma once

#include <string>

namespace spillway::test {

// Marks the running test case as skipped and says why; the case then returns, or goes on with the
// rest. A test program of whose cases none failed and every one was skipped exits with 77, which
// ctest, running each case by itself, shows as "Skipped" instead of "Passed".
void skip(const std::string& why);

}  // namespace spillway::test
