// The composition root: nothing above it, everything below is given what it needs.
#include <cstdio>

int main() {
  std::puts("spillway " SPILLWAY_VERSION);
  return 0;
}
