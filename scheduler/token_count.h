// What a scheduler counts of a sequence in a sweep for its statistics: what it generates while a
// TokenCount lives (tokens, and the time since the one before).
#pragma once

#include <cstdint>

#include "kernels/base/clock.h"
#include "scheduler/histogram.h"
#include "scheduler/sequence.h"

namespace spillway {

class TokenCount {
 public:
  // All three outlive it.
  TokenCount(const Sequence& sequence, uint64_t* generated, Histogram* gaps)
      : sequence_(sequence),
        before_(sequence.generated()),
        last_(sequence.last_token_time()),
        generated_(generated),
        gaps_(gaps) {}
  ~TokenCount() {
    const auto added = static_cast<uint64_t>(sequence_.generated() - before_);
    *generated_ += added;
    if (added > 0 && before_ > 0) gaps_->add(now_ - last_);
  }
  TokenCount(const TokenCount&) = delete;
  TokenCount& operator=(const TokenCount&) = delete;

  double now() const { return now_; }  // When it was made

 private:
  const Sequence& sequence_;
  const int64_t before_;
  const double last_;
  const double now_ = steady_seconds();
  uint64_t* const generated_;
  Histogram* const gaps_;
};

}  // namespace spillway
