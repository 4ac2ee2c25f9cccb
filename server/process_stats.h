// What the kernel counts for this process.
#pragma once

#include <cstdint>

namespace spillway {

uint64_t peak_resident_bytes();

}  // namespace spillway
