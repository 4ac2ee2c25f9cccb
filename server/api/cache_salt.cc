#include "server/api/cache_salt.h"

#include <xxhash.h>

#include <random>

namespace spillway {

uint64_t salt_of_text(std::string_view text) {
  static const uint64_t secret = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return XXH3_64bits_withSeed(text.data(), text.size(), secret);
}

}  // namespace spillway
