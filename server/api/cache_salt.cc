#include "server/api/cache_salt.h"

#include <xxhash.h>

namespace spillway {

uint64_t salt_of_text(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

uint64_t salt_of_key(uint64_t salt, uint64_t key) {
  return key == 0 ? salt : XXH3_64bits_withSeed(&salt, sizeof(salt), key);
}

}  // namespace spillway
