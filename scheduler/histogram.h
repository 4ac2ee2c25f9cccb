// A histogram of durations or counts, with the bucket bounds that vLLM's dashboards use. A value of
// fixed size: adding allocates nothing, a copy is a snapshot.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace spillway {

class Histogram {
 public:
  using Bounds = std::array<double, 22>;  // Ascending

  // `bounds` outlives every copy.
  explicit Histogram(const Bounds& bounds) : bounds_(&bounds) {}

  // A bucket includes its bound; values above the last bound have a count of their own.
  void add(double value) {
    const auto at = std::lower_bound(bounds_->begin(), bounds_->end(), value);
    ++counts_[static_cast<size_t>(at - bounds_->begin())];
    sum_ += value;
  }

  const Bounds& bounds() const { return *bounds_; }
  uint64_t count(size_t bucket) const { return counts_[bucket]; }  // Not cumulative; 22: above all
  uint64_t count() const { return std::accumulate(counts_.begin(), counts_.end(), uint64_t{0}); }
  double sum() const { return sum_; }

 private:
  const Bounds* bounds_;
  std::array<uint64_t, Bounds().size() + 1> counts_{};
  double sum_ = 0;
};

// vLLM's time_to_first_token_seconds.
inline constexpr Histogram::Bounds kFirstTokenBounds = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};

// vLLM's request_..._seconds, and eight hours: models that stream from disk take that long.
inline constexpr Histogram::Bounds kRequestBounds = {0.3, 0.5, 0.8, 1,    1.5,  2,    2.5, 5,
                                                     10,  15,  20,  30,   40,   50,   60,  120,
                                                     240, 480, 960, 1920, 7680, 28800};

// vLLM's inter_token_latency_seconds, and what passes over a model on disk take.
inline constexpr Histogram::Bounds kTokenBounds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                                                   0.4,  0.5,   0.75, 1,     2.5, 5,    7.5, 10,
                                                   20,   40,    80,   160,   640, 2560};

// vLLM's request_..._tokens: 1, 2, 5 times each power of ten.
inline constexpr Histogram::Bounds kCountBounds = {
    1,    2,     5,     10,    20,     50,     100,    200,     500,     1000,    2000,
    5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000, 5000000, 10000000};

}  // namespace spillway
