// The fuzz targets of fuzz_replay. (No namespace: targets have C's linkage.)
#pragma once

#include <cstddef>
#include <cstdint>

struct FuzzTarget {
  const char* name;  // Null behind the last
  int (*run)(const uint8_t* data, size_t size);
};
extern const FuzzTarget kFuzzTargets[];
