#include "server/api/seed_stream.h"

#include "scheduler/sampler.h"

namespace spillway {

uint64_t SeedStream::next() {
  // All bits of two generator outputs: neither neighbouring seeds nor neighbouring requests are
  // alike.
  const uint64_t step = drawn_.fetch_add(1);
  const auto high = static_cast<uint64_t>(uniform_sample(seed_, 2 * step) * 0x1p32);
  const auto low = static_cast<uint64_t>(uniform_sample(seed_, 2 * step + 1) * 0x1p32);
  return high << 32 | low;
}

}  // namespace spillway
