// Loads unaligned little-endian numbers from bytes. The caller has checked the range.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/base/check.h"

namespace spillway {

static_assert(std::endian::native == std::endian::little, "these loads are plain copies");

// REQUIRES: at + sizeof(T) <= bytes.size().
template <class T>
T load_little(std::span<const std::byte> bytes, size_t at) {
  SPILLWAY_CHECK(at <= bytes.size() && sizeof(T) <= bytes.size() - at);
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

}  // namespace spillway
