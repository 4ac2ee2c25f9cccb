// A part of an object that moves between tiers.
#pragma once

#include <cstdint>

namespace spillway {

// Bytes [from, to) of an object.
struct ByteRange {
  uint64_t from = 0, to = 0;
};

}  // namespace spillway
