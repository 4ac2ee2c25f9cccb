// What a benchmark found out: the run, the ceilings measured before, during and after it, and the
// bounds they give. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/measure/ceilings.h"
#include "kernels/measure/peaks.h"
#include "kernels/weight_layout.h"
#include "policy/bound.h"
#include "server/cli/bench/bench.h"
#include "server/runtime.h"

namespace spillway {

// What the machine reaches alone, at one time.
struct MeasuredCeilings {
  Ceilings rates;                     // As kernels reached them: ours, or the vendor's where better
  std::vector<MatrixCeiling> matrix;  // Beside rates.matrix
  Peaks peaks;                        // Of a CPU's instructions
  // What the hardware can do at most, and by what: of products, and of prompt attention.
  Peak products, attention;
  CopyCeiling copies;        // Of a device with memory of its own
  bool of_own_file = false;  // The disk's reading is of the cache that the run left there

  // Those of the hardware: whatever kernels do, nothing is faster.
  Ceilings hardware() const;
};

// The best of both, rate by rate: what was possible at one time is a ceiling. But what was read
// from the run's own file stands alone. REQUIRES: both are of the same probes; a is of before the
// run.
MeasuredCeilings best_of(const MeasuredCeilings& a, const MeasuredCeilings& b);

// What was measured between the sweeps of a run.
struct MeasuredDuring {
  Peaks peaks;                 // Best of all times; 0: not measured
  std::vector<double> memory;  // Bytes per second, by time
};

// Of what was measured before, during and after a run.
struct BenchResult;
MeasuredCeilings ceilings_of_run(const BenchResult& result);

// A bound of some sweeps, by the hardware and by our kernels.
struct Bounds {
  Bound hardware, kernels;
};

struct BenchResult {
  BenchFlags flags;
  std::string model;
  std::string device;
  Plan plan;
  MatrixLayout matrix_layout = MatrixLayout::kRows;  // Of the weights
  bool overlap = true;
  uint64_t peak_host_bytes = 0;
  uint64_t peak_device_bytes = 0;  // Of a device's own memory, by the run; 0: it has none
  // The same beside it, at the end: its driver and libraries, and other programs.
  uint64_t other_device_bytes = 0;

  double prefill_seconds = 0;  // Until the last sequence had its first token
  double decode_seconds = 0;   // The rest
  double total_seconds = 0;
  int64_t generated = 0;  // Tokens
  // A run that was cut short: what was measured. The three above are then projected from it, each
  // step as long as the mean of those that ran; with a cache that grows later ones would be longer.
  struct Cut {
    int64_t decode_steps = 0;
    double decode_seconds = 0;  // Of these
    double total_seconds = 0;
    int64_t generated = 0;
  };
  std::optional<Cut> cut;
  std::vector<SweepWork> sweeps;
  std::optional<double> predicted;  // Tokens/s, where this machine has a hardware profile

  MeasuredCeilings before, after;
  // What the CPU's instructions gave between sweeps, and memory where nothing else moves through it
  // then: with nothing on disk.
  MeasuredDuring during;
  MeasuredCeilings ceilings;      // What the bounds take: ceilings_of_run()
  Bounds total, prefill, decode;  // A sweep with a prompt is a prefill.

  // That the sweeps took, and what is between them.
  double measured_seconds() const { return cut ? cut->total_seconds : total_seconds; }
};

// Where the time of some sweeps went.
struct TimeByCause {
  int64_t sweeps = 0;
  double seconds = 0;          // All of it
  double compute_seconds = 0;  // What is left when the waits are taken off
  double weights_wait_seconds = 0, kv_wait_seconds = 0, activations_wait_seconds = 0;
  double staging_wait_seconds = 0;
  uint64_t disk_read_bytes = 0, disk_write_bytes = 0;
  uint64_t to_device_bytes = 0, to_host_bytes = 0;
};
TimeByCause time_by_cause(std::span<const SweepWork> sweeps);

// A bound over the time that was measured: 1 is as fast as can be. 0: no time was measured.
double efficiency(const Bound& bound, double measured_seconds);

// Noise of the measurement aside, a run cannot be faster than its bound. Where it was, a rate that
// the bound was made of is too low, and the efficiency says nothing.
constexpr double kEfficiencyMax = 1.02;

// The sweeps with a prompt in them, or the others.
std::vector<SweepWork> prefill_sweeps(std::span<const SweepWork> sweeps);
std::vector<SweepWork> decode_sweeps(std::span<const SweepWork> sweeps);

}  // namespace spillway
