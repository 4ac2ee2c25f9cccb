// Seeds for requests without one: a stream that --seed determines, so the n-th seed after a start
// is the same each time. The order of arrival assigns seeds to requests. Any thread.
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
