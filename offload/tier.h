// Where bytes live, from the fastest to the largest.
#pragma once

#include <cstdint>

namespace spillway {

// On a CPU device the device's memory is the host's, and nothing lives on kHost.
enum class Tier : uint8_t { kDevice, kHost, kDisk };

}  // namespace spillway
