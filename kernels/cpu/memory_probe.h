// Memory read probes. No order of reading is the fastest on every machine, and a ceiling must not
// depend on the order that our kernels happen to use (kernels/measure/ceilings.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/cpu_context.h"

namespace spillway::cpu {

// Target of the software prefetch: none, the first level of cache, the second, or past it.
enum class Hint : uint8_t { kNone, kFirst, kSecond, kPast };

struct ReadPattern {
  int streams = 1;  // Places that a thread reads in turn: 1, 2, 4 or 8
  Hint hint = Hint::kNone;
};

// All patterns.
std::span<const ReadPattern> read_patterns();

// Reads every byte once on all threads, with the widest loads of this CPU. Returns the bytes read,
// mixed: 0 where all of them are 0. REQUIRES: whole MiB, aligned to 64 bytes.
uint64_t read_memory(CpuContext& context, const std::byte* data, size_t bytes,
                     const ReadPattern& pattern);

// The pattern that reads these bytes fastest at the moment.
ReadPattern fastest_pattern(CpuContext& context, const std::byte* data, size_t bytes);

}  // namespace spillway::cpu
