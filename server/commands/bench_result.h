// What a benchmark found out: the run, the ceilings measured just before and just after, and the
// bound they give. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/ceilings.h"
#include "policy/bound.h"
#include "server/commands/bench.h"
#include "server/runtime.h"

namespace spillway {

// What the machine reaches alone, at one time.
struct MeasuredCeilings {
  Ceilings rates;
  std::vector<MatrixCeiling> matrix;  // Beside rates.matrix
  CopyCeiling copies;                 // Of a device with memory of its own
  bool of_own_file = false;           // The disk's reading is of the cache that the run left there
};

// Of what was measured before, during and after a run.
struct BenchResult;
MeasuredCeilings ceilings_of_run(const BenchResult& result);

// Rate by rate; but what was read from the run's own file is its own best measure, and stands
// alone. REQUIRES: both are of the same probes; a is of before the run.
MeasuredCeilings mean_of(const MeasuredCeilings& a, const MeasuredCeilings& b);

struct BenchResult {
  BenchFlags flags;
  std::string model;
  std::string device;
  bool own_memory = false;  // The device has some
  RuntimePlan plan;
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
  // What memory gave between decode steps, where nothing else moves through it then: on a CPU, with
  // nothing on disk. Empty: not measured.
  std::vector<double> memory_during;         // Bytes per second
  MeasuredCeilings ceilings;                 // What the bounds take: ceilings_of_run()
  Bound bound, prefill_bound, decode_bound;  // A sweep with a prompt is a prefill.

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

// The sweeps with a prompt in them, or the others.
std::vector<SweepWork> prefill_sweeps(std::span<const SweepWork> sweeps);
std::vector<SweepWork> decode_sweeps(std::span<const SweepWork> sweeps);

}  // namespace spillway
