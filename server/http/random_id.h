// Unguessable ids. Any thread.
#pragma once

#include <string>

namespace spillway {

// Lower-case hexadecimal digits from the kernel's random source.
std::string random_hex(int digits);

}  // namespace spillway
