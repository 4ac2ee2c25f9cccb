#include "server/commands/bench_result.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "kernels/base/check.h"

namespace spillway {

namespace {

bool has_prompt(const SweepWork& work) {
  return work.prompts > 0;
}

}  // namespace

MeasuredCeilings mean_of(const MeasuredCeilings& a, const MeasuredCeilings& b) {
  SPILLWAY_CHECK(a.matrix.size() == b.matrix.size() && a.rates.matrix.size() == a.matrix.size() &&
                 b.rates.matrix.size() == b.matrix.size());
  const auto mean = [&](auto part, auto rate) { return (a.*part.*rate + b.*part.*rate) / 2; };
  MeasuredCeilings found = a;
  for (const auto rate :
       {&Ceilings::attention_flops_per_second, &Ceilings::memory_bytes_per_second,
        &Ceilings::disk_read_bytes_per_second, &Ceilings::disk_write_bytes_per_second,
        &Ceilings::to_device_bytes_per_second, &Ceilings::to_host_bytes_per_second}) {
    found.rates.*rate = mean(&MeasuredCeilings::rates, rate);
  }
  if (b.of_own_file) found.rates.disk_read_bytes_per_second = b.rates.disk_read_bytes_per_second;
  found.of_own_file = b.of_own_file;
  for (const auto rate : {&CopyCeiling::to_device, &CopyCeiling::to_host, &CopyCeiling::both}) {
    found.copies.*rate = mean(&MeasuredCeilings::copies, rate);
  }
  for (size_t i = 0; i < found.matrix.size(); ++i) {
    found.matrix[i].ours = (a.matrix[i].ours + b.matrix[i].ours) / 2;
    found.matrix[i].library = (a.matrix[i].library + b.matrix[i].library) / 2;
    found.rates.matrix[i].flops_per_second =
        (a.rates.matrix[i].flops_per_second + b.rates.matrix[i].flops_per_second) / 2;
  }
  return found;
}

MeasuredCeilings ceilings_of_run(const BenchResult& result) {
  MeasuredCeilings found = mean_of(result.before, result.after);
  const std::vector<double>& during = result.memory_during;
  if (!during.empty()) {
    // Samples at equal distances: their mean is what could have been read in all that time.
    found.rates.memory_bytes_per_second =
        std::accumulate(during.begin(), during.end(), 0.0) / static_cast<double>(during.size());
  }
  return found;
}

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
