// Unguessable ids and numbers, from the kernel's random source. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace spillway {

// Lower-case hexadecimal digits.
std::string random_hex(int digits);

uint64_t random_u64();

}  // namespace spillway
