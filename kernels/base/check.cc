#include "kernels/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace spillway {

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "spillway: internal error, please report it: %s (%s:%d)\n", expression, file,
               line);
  std::abort();
}

}  // namespace spillway
