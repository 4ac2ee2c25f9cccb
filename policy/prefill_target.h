// The prompt tokens that sweeps aim at (SweepLimits::prefill_target), corrected by measured sweeps.
//
// While sequences decode, a sweep waits for the weights and the cache that it reads, and prompts
// are computed in that time for nothing. A plan knows how many by the rates of a profile; on the
// day the disk or the link may be slower, and then more fit. Pure arithmetic; one thread.
#pragma once

#include <cstdint>

namespace spillway {

// A sweep that ran.
struct MeasuredSweep {
  int64_t decoding = 0, prompt_tokens = 0;  // Rows
  double seconds = 0, waiting_seconds = 0;  // In all, and waiting for data
  // More requests would have joined if the target had been higher.
  bool limited_by_target = false;
};

class PrefillTarget {
 public:
  // `planned`: where it begins, and never below that; 0: there is no target. `most`: the most
  // prompt tokens of a sweep.
  PrefillTarget(int64_t planned, int64_t most);

  int64_t tokens() const;  // 0: no target

  // Raises the target where sweeps wait for data, and lets it sink to the planned one where they do
  // not. Sweeps that the target did not limit tell nothing about it.
  void correct(const MeasuredSweep& sweep);

 private:
  const double planned_, most_;
  double tokens_;
};

}  // namespace spillway
