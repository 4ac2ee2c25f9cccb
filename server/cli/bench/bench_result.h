// The results of a benchmark: the run, the ceilings measured before, during and after it, and the
// bounds from them. Plain values.
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

// The machine's rates without a run, measured at one time.
struct MeasuredCeilings {
  Ceilings rates;                     // As kernels reached them: ours, or the vendor's where faster
  std::vector<MatrixCeiling> matrix;  // Goes with rates.matrix
  Peaks peaks;                        // CPU only: its instructions' peaks
  // Hardware peaks of matrix products and of prompt attention, with the instruction or kernel.
  Peak products, attention;
  CopyCeiling copies;        // Discrete devices only
  bool of_own_file = false;  // The disk's read rate was measured on the run's own cache

  // The hardware's rates, which no kernel can exceed.
  Ceilings hardware() const;
};

// The best of both, rate by rate: a rate reached at one time is a ceiling for all. A disk read rate
// from the run's own file takes precedence. REQUIRES: both are of the same probes; a was measured
// before the run.
MeasuredCeilings best_of(const MeasuredCeilings& a, const MeasuredCeilings& b);

// Rates measured between the sweeps of a run.
struct MeasuredDuring {
  Peaks peaks;                 // Best of all times; 0: not measured
  std::vector<double> memory;  // Bytes per second, by time
};

// The best of the ceilings measured before, during and after a run.
struct BenchResult;
MeasuredCeilings ceilings_of_run(const BenchResult& result);

// Bounds on some sweeps, by the hardware and by our kernels.
struct Bounds {
  Bound hardware, kernels;
};

struct BenchResult {
  BenchFlags flags;
  std::string model;
  std::string device;
  Plan plan;
  uint64_t peak_host_bytes = 0;
  uint64_t peak_device_bytes = 0;  // Peak of a discrete device's memory in the run; else 0
  // The rest of that memory in use at the end: driver, libraries and other programs.
  uint64_t other_device_bytes = 0;

  double prefill_seconds = 0;  // Until the last sequence had its first token
  double decode_seconds = 0;   // The rest
  double total_seconds = 0;
  int64_t generated = 0;  // Tokens
  // The measured part of a run that was cut short. The three times above are then projected from
  // it, each step as long as the mean of those that ran; with a growing cache later ones would take
  // longer.
  struct Cut {
    int64_t decode_steps = 0;
    double decode_seconds = 0;  // Time of those decode steps
    double total_seconds = 0;
    int64_t generated = 0;
  };
  std::optional<Cut> cut;
  std::vector<LoggedSweep> sweeps;
  std::optional<double> predicted;  // Tokens/s, where this machine has a hardware profile

  MeasuredCeilings before, after;
  // Rates of the CPU's instructions between sweeps, and of memory if nothing is on disk, so that
  // nothing else uses it then.
  MeasuredDuring during;
  MeasuredCeilings ceilings;          // The bounds' rates: ceilings_of_run()
  Bounds total, prefill, decode;      // A sweep with a prompt is a prefill.
  Bounds steady;                      // Of steady_sweeps()
  int64_t prefill_target_at_end = 0;  // The plan's, corrected by what was measured

  // Time of the sweeps and between them.
  double measured_seconds() const { return cut ? cut->total_seconds : total_seconds; }
};

// The time of some sweeps by cause.
struct TimeByCause {
  int64_t sweeps = 0;
  double seconds = 0;          // The sum
  double compute_seconds = 0;  // Without the waits
  double weights_wait_seconds = 0, kv_wait_seconds = 0, activations_wait_seconds = 0;
  double staging_wait_seconds = 0;
  uint64_t disk_read_bytes = 0, disk_write_bytes = 0;
  uint64_t to_device_bytes = 0, to_host_bytes = 0;
};
TimeByCause time_by_cause(std::span<const LoggedSweep> sweeps);

// The bound divided by the measured time: 1 is optimal. 0: no time was measured.
double efficiency(const Bound& bound, double measured_seconds);

// Apart from noise a run cannot be faster than its bound. If it was, one of the bound's rates is
// too low, and the efficiency is meaningless.
constexpr double kEfficiencyMax = 1.02;

// The sweeps with prompts, and those without.
std::vector<LoggedSweep> prefill_sweeps(std::span<const LoggedSweep> sweeps);
std::vector<LoggedSweep> decode_sweeps(std::span<const LoggedSweep> sweeps);

// Of a run of more sequences than a block holds, the sweeps between its filling and its emptying:
// from the first after a sequence has ended to the last in which a prompt is computed. Empty where
// none ends before the last prompt.
std::vector<LoggedSweep> steady_sweeps(std::span<const LoggedSweep> sweeps);

// The tokens that sweeps generate.
int64_t generated_tokens(std::span<const LoggedSweep> sweeps);

}  // namespace spillway
