// Seeds of requests that bring none: a stream that --seed decides, so the n-th draw after a start
// is the same each time. Which request draws which is decided by the order of arrival. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace spillway {

class SeedStream {
 public:
  explicit SeedStream(uint64_t seed) : seed_(seed) {}

  uint64_t next();

 private:
  const uint64_t seed_;
  std::atomic<uint64_t> drawn_{0};
};

}  // namespace spillway
