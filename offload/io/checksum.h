// The checksum of all data that is read back from disk: slabs of a packed file, spilled pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway {

// XXH3-64 of the bytes. The seed encodes their place, so that right bytes from a wrong place do not
// pass. Pure.
uint64_t seeded_checksum(std::span<const std::byte> bytes, uint64_t seed);

}  // namespace spillway
