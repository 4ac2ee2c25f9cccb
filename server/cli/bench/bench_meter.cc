#include "server/cli/bench/bench_meter.h"

#include "kernels/base/clock.h"
#include "kernels/measure/peaks.h"

namespace spillway {

namespace {

constexpr double kSecondsBetween = 4;  // About half a per cent of the run's time goes here.
constexpr PeakRuns kShort{.runs = 1, .run_seconds = 0.002};

}  // namespace

Result<BenchMeter> BenchMeter::open(Device& device, bool with_memory) {
  std::optional<MemoryMeter> memory;
  if (with_memory) {
    SPILLWAY_ASSIGN_OR_RETURN(MemoryMeter opened, MemoryMeter::open(device));
    memory.emplace(std::move(opened));
  }
  return BenchMeter(device, std::move(memory));
}

void BenchMeter::measure_now_and_then() {
  if (steady_seconds() - measured_ < kSecondsBetween) return;
  if (memory_) found_.memory.push_back(memory_->measure());
  found_.peaks = best_of(found_.peaks, measure_peaks(device_, kShort));
  measured_ = steady_seconds();
}

}  // namespace spillway
