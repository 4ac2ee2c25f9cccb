// The salts by which prompts share cached beginnings or do not (Request::cache_salt).
#pragma once

#include <cstdint>
#include <string_view>

namespace spillway {

// Of a request's own `cache_salt` (as in vLLM): requests with equal ones share.
uint64_t salt_of_text(std::string_view text);

// Of a request with an API key: different keys share nothing. `key`: its number; 0: none.
uint64_t salt_of_key(uint64_t salt, uint64_t key);

}  // namespace spillway
