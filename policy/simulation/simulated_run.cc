#include "policy/simulation/simulated_run.h"

#include <algorithm>
#include <map>

namespace spillway {

namespace {

// The time of [from, to) with each stretch multiplied by its weight.
class Weighing {
 public:
  Weighing(std::span<const SimulatedStretch> stretches, const Simulation& timeline)
      : stretches_(stretches) {
    for (const SimulatedStretch& stretch : stretches) ends_.push_back(timeline.end(stretch.end));
    // The last write-backs end after the last sweep.
    if (!ends_.empty()) ends_.back() = timeline.end();
  }

  double end(size_t stretch) const { return ends_[stretch]; }

  double seconds(double from, double to) const {
    auto at =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), from) - ends_.begin());
    double sum = 0;
    for (; at < ends_.size() && from < to; ++at) {
      const double end = std::min(to, ends_[at]);
      sum += (end - from) * stretches_[at].weight;
      from = end;
    }
    return sum;
  }

 private:
  const std::span<const SimulatedStretch> stretches_;
  std::vector<double> ends_;
};

}  // namespace

void finish_run(std::span<const SimulatedStretch> stretches, SimulatedRun* run) {
  Simulation& timeline = run->timeline;
  timeline.run();
  const Weighing weighing(stretches, timeline);
  double before = 0;
  for (size_t i = 0; i < stretches.size(); ++i) {
    const double seconds = (weighing.end(i) - before) * stretches[i].weight;
    (stretches[i].prefill ? run->prefill_seconds : run->decode_seconds) += seconds;
    before = weighing.end(i);
  }
  for (size_t r = 0; r < timeline.resources(); ++r) {
    const Simulation::Resource resource{static_cast<uint32_t>(r)};
    double seconds = 0;
    for (const auto& span : timeline.spans(resource)) {
      seconds += weighing.seconds(span.start, span.end);
    }
    run->resources.push_back({timeline.name(resource), seconds});
  }
  std::map<std::string, double> waits;
  for (const Simulation::Resource processor : run->processors) {
    for (const auto& wait : timeline.waits(processor)) {
      waits[wait.what] += weighing.seconds(wait.start, wait.end);
    }
  }
  for (const auto& [what, seconds] : waits) run->waits.push_back({what, seconds});
  std::stable_sort(run->waits.begin(), run->waits.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
}

}  // namespace spillway
