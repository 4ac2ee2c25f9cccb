// The salts by which prompts share cached beginnings or do not (CacheSalt).
#pragma once

#include <cstdint>
#include <string_view>

namespace spillway {

// Of a request's own `cache_salt` (as in vLLM): requests with equal ones share. It differs from one
// process to the next, so that no text can be made that has the salt of another.
uint64_t salt_of_text(std::string_view text);

}  // namespace spillway
