// What the kernel counts for this process.
#pragma once

#include <cstdint>

namespace spillway {

uint64_t peak_resident_bytes();

struct IoCounts {
  uint64_t read_bytes = 0;     // From storage
  uint64_t written_bytes = 0;  // To storage
  IoCounts operator-(const IoCounts& other) const {
    return {read_bytes - other.read_bytes, written_bytes - other.written_bytes};
  }
};
IoCounts io_counts();

}  // namespace spillway
