// Runs the block of a benchmark through the scheduler and times it. One thread, which blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/device.h"
#include "kernels/measure/ceilings.h"
#include "scheduler/engine/engine.h"
#include "server/cli/bench/bench_result.h"
#include "server/runtime.h"

namespace spillway {

// Measures the machine between the sweeps of a benchmark: the rates of a shared machine change
// within minutes (seen of memory: 77 GB/s just before a run, 43 GB/s just after), and a bound takes
// the best.
class BenchMeter {
 public:
  // Measures memory reads, too, of `memory_bytes`, unless they are 0; nothing else may use memory
  // then. kCapacity: not enough memory. REQUIRES: the device shares host memory, and lives longer.
  static Result<BenchMeter> open(Device& device, size_t memory_bytes);

  size_t bytes() const { return memory_ ? memory_->bytes() : 0; }

  // Measures every few seconds, for some tens of milliseconds. Not inside an op.
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

// Whether the flags fit the model and the plan, whose sequences at once are those of flags that
// name none. kInvalidArgument: they do not.
Status check_bench(const ModelShape& shape, const Plan& plan, BenchFlags* flags);

// Prompt tokens of one sweep: those of all sequences (the block where flags.sequences is 0), or
// fewer to bound the activations of a sweep.
int64_t bench_prefill_tokens(const BenchFlags& flags, std::optional<int64_t> block);

// What a benchmark wishes of its plan; settles in `flags` and `engine` what follows from it.
PlanWishes bench_wishes(BenchFlags* flags, EngineFlags* engine);

// Runs flags.sequences greedy sequences of equal length and fills in times, tokens and sweeps; all
// steps, or flags.decode_steps after the last sequence's first token, projecting the others. `log`
// is the one the runtime was opened with. With a meter the machine is measured between sweeps, on
// the run's own time (half a per cent). Shows the progress of a long run on stderr.
Status run_bench_block(const BenchFlags& flags, Runtime& runtime, SweepLog& log, BenchMeter* meter,
                       BenchResult* result);

// A short run of the same kind, which reads the weights once and compiles everything that compiles
// at first use: at most about 10 seconds of arithmetic on two cores, and one sweep where the disk
// takes part, since it may take half a minute.
BenchFlags warm_up_of(const BenchFlags& flags, const ModelShape& shape, bool uses_disk);

}  // namespace spillway
