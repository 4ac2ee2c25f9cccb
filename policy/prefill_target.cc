#include "policy/prefill_target.h"

#include <algorithm>

namespace spillway {

namespace {

// Shares of a sweep's time: above the first, waiting is worth filling; below the second there is
// none to speak of. Part of the found tokens that is added at once: sequences that join read more
// in later sweeps, so that a full step would go too far.
constexpr double kWaits = 0.05, kNoWaits = 0.02, kStep = 0.25;
constexpr double kSinks = 1.0 / 32;

}  // namespace

PrefillTarget::PrefillTarget(int64_t planned, int64_t most)
    : planned_(static_cast<double>(std::min(planned, most))),
      most_(static_cast<double>(most)),
      tokens_(planned_) {}

int64_t PrefillTarget::tokens() const {
  return static_cast<int64_t>(tokens_);
}

void PrefillTarget::correct(const MeasuredSweep& sweep) {
  const bool tells = sweep.limited_by_target && sweep.decoding > 0 && sweep.prompt_tokens > 0;
  if (planned_ == 0 || !tells || sweep.seconds <= 0) return;
  const double waiting = std::clamp(sweep.waiting_seconds, 0.0, sweep.seconds);
  const double share = waiting / sweep.seconds;
  if (share > kWaits) {
    const auto rows = static_cast<double>(sweep.decoding + sweep.prompt_tokens);
    // Not more than twice in a step, however little of the sweep was arithmetic.
    const double fit =
        std::min(rows * waiting / std::max(sweep.seconds - waiting, 1e-9), tokens_ / kStep);
    tokens_ = std::min(most_, tokens_ + kStep * fit);
  } else if (share < kNoWaits) {
    tokens_ = std::max(planned_, tokens_ * (1 - kSinks));
  }
}

}  // namespace spillway
