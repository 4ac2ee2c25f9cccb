#include "server/api/cache_salt.h"

#include <xxhash.h>

#include "server/http/random_id.h"

namespace spillway {

uint64_t salt_of_text(std::string_view text) {
  static const uint64_t secret = random_u64();
  return XXH3_64bits_withSeed(text.data(), text.size(), secret);
}

}  // namespace spillway
