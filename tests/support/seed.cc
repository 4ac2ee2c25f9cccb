#include "tests/support/seed.h"

#include <charconv>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string_view>

namespace spillway::test {

unsigned random_seed() {
  const char* given = std::getenv("SPILLWAY_TEST_SEED");
  if (given == nullptr) return std::random_device{}();
  const std::string_view text = given;
  unsigned seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw std::runtime_error("SPILLWAY_TEST_SEED is no number from 0 to 4294967295");
  }
  return seed;
}

}  // namespace spillway::test
