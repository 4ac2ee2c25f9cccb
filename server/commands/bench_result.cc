#include "server/commands/bench_result.h"

#include <algorithm>
#include <iterator>

namespace spillway {

namespace {

bool has_prompt(const SweepWork& work) {
  return work.prompts > 0;
}

}  // namespace

TimeByCause time_by_cause(std::span<const SweepWork> sweeps) {
  TimeByCause time;
  for (const SweepWork& work : sweeps) {
    ++time.sweeps;
    time.seconds += work.seconds;
    time.weights_wait_seconds += work.weights_wait_seconds;
    time.kv_wait_seconds += work.kv_wait_seconds;
    time.activations_wait_seconds += work.activations_wait_seconds;
    time.staging_wait_seconds += work.staging_wait_seconds;
    time.disk_read_bytes += work.disk_read_bytes;
    time.disk_write_bytes += work.disk_write_bytes;
    time.to_device_bytes += work.to_device_bytes;
    time.to_host_bytes += work.to_host_bytes;
  }
  time.compute_seconds =
      std::max(0.0, time.seconds - time.weights_wait_seconds - time.kv_wait_seconds -
                        time.activations_wait_seconds - time.staging_wait_seconds);
  return time;
}

std::vector<SweepWork> prefill_sweeps(std::span<const SweepWork> sweeps) {
  std::vector<SweepWork> some;
  std::copy_if(sweeps.begin(), sweeps.end(), std::back_inserter(some), has_prompt);
  return some;
}

std::vector<SweepWork> decode_sweeps(std::span<const SweepWork> sweeps) {
  std::vector<SweepWork> some;
  std::remove_copy_if(sweeps.begin(), sweeps.end(), std::back_inserter(some), has_prompt);
  return some;
}

}  // namespace spillway
