#include "policy/stage_cost.h"

#include <algorithm>

namespace spillway {

size_t StagePrediction::slowest() const {
  const auto most = std::max_element(busy_seconds.begin(), busy_seconds.end());
  return static_cast<size_t>(most - busy_seconds.begin());
}

StagePrediction predict_stages(std::span<const StageCost> stages,
                               std::span<const PlannedSweeps> sweeps, double network) {
  StagePrediction found;
  found.busy_seconds.resize(stages.size());
  size_t last_prefill = 0;
  for (size_t i = 0; i < sweeps.size(); ++i) {
    if (sweeps[i].work.prompts > 0) last_prefill = i;
  }
  const auto sub_blocks = static_cast<double>(stages.size());
  for (size_t i = 0; i < sweeps.size(); ++i) {
    const auto count = static_cast<double>(sweeps[i].count);
    double around = 0, most = 0;
    for (size_t s = 0; s < stages.size(); ++s) {
      const double seconds = sweep_seconds(stages[s].plan, stages[s].rates, sweeps[i]);
      around += seconds;
      most = std::max(most, seconds);
      found.busy_seconds[s] += sub_blocks * count * seconds;
    }
    // From each stage to the next; tokens to the first are few.
    const double hop =
        4 * static_cast<double>(sweeps[i].work.tokens() * stages[0].plan.shape.hidden) / network;
    const double hops = (sub_blocks - 1) * hop;
    found.network_seconds += sub_blocks * count * hops;
    double seconds = count * std::max(sub_blocks * std::max(most, hop), around + hops);
    if (i == 0)
      seconds += around + hops - most;  // Until the last stage has work, for the first time
    (i <= last_prefill ? found.prefill_seconds : found.decode_seconds) += seconds;
    found.generated += static_cast<int64_t>(stages.size()) * sweeps[i].count *
                       (sweeps[i].work.decoding + sweeps[i].work.prompts);
  }
  return found;
}

}  // namespace spillway
