// Measures the machine between the sweeps of a benchmark: what a shared one gives changes within
// minutes (seen of memory: 77 GB/s just before a run, 43 GB/s just after), and a bound takes the
// best that was there.
#pragma once

#include <cstddef>
#include <optional>

#include "kernels/device.h"
#include "kernels/measure/ceilings.h"
#include "server/cli/bench/bench_result.h"

namespace spillway {

class BenchMeter {
 public:
  // `with_memory`: its reading too, which nothing else may need then. kCapacity: there is no room.
  // REQUIRES: the device shares host memory, and lives longer.
  static Result<BenchMeter> open(Device& device, bool with_memory);

  size_t bytes() const { return memory_ ? memory_->bytes() : 0; }

  // Every few seconds, for some tens of milliseconds. Not inside an op.
  void measure_now_and_then();

  const MeasuredDuring& found() const { return found_; }

 private:
  BenchMeter(Device& device, std::optional<MemoryMeter> memory)
      : device_(device), memory_(std::move(memory)) {}

  Device& device_;
  std::optional<MemoryMeter> memory_;
  MeasuredDuring found_;
  double measured_ = 0;
};

}  // namespace spillway
