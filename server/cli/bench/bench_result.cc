#include "server/cli/bench/bench_result.h"

#include <algorithm>
#include <iterator>

#include "kernels/base/check.h"

namespace spillway {

namespace {

bool has_prompt(const LoggedSweep& work) {
  return work.prompt_parts() > 0;
}

}  // namespace

Ceilings MeasuredCeilings::hardware() const {
  Ceilings ceilings = rates;
  ceilings.products = products.operations_per_second;
  ceilings.prompt_attention = attention.operations_per_second;
  ceilings.cache = 0;
  return ceilings;
}

MeasuredCeilings best_of(const MeasuredCeilings& a, const MeasuredCeilings& b) {
  SPILLWAY_CHECK(a.matrix.size() == b.matrix.size() && a.rates.matrix.size() == a.matrix.size() &&
                 b.rates.matrix.size() == b.matrix.size());
  const auto best = [&](auto part, auto rate) { return std::max(a.*part.*rate, b.*part.*rate); };
  MeasuredCeilings found = a;
  for (const auto rate :
       {&Ceilings::prompt_attention, &Ceilings::memory, &Ceilings::cache, &Ceilings::disk_read,
        &Ceilings::disk_write, &Ceilings::to_device, &Ceilings::to_host}) {
    found.rates.*rate = best(&MeasuredCeilings::rates, rate);
  }
  if (b.of_own_file) found.rates.disk_read = b.rates.disk_read;
  found.of_own_file = b.of_own_file;
  for (const auto rate : {&CopyCeiling::to_device, &CopyCeiling::to_host, &CopyCeiling::both}) {
    found.copies.*rate = best(&MeasuredCeilings::copies, rate);
  }
  for (size_t i = 0; i < found.matrix.size(); ++i) {
    found.matrix[i].ours = std::max(a.matrix[i].ours, b.matrix[i].ours);
    found.matrix[i].library = std::max(a.matrix[i].library, b.matrix[i].library);
    found.rates.matrix[i].flops_per_second = found.matrix[i].best();
  }
  found.peaks = best_of(a.peaks, b.peaks);
  found.products = best_of(a.products, b.products);
  found.attention = best_of(a.attention, b.attention);
  return found;
}

MeasuredCeilings ceilings_of_run(const BenchResult& result) {
  MeasuredCeilings found = best_of(result.before, result.after);
  for (const double rate : result.during.memory) {
    found.rates.memory = std::max(found.rates.memory, rate);
  }
  if (result.plan.discrete) return found;
  found.peaks = best_of(found.peaks, result.during.peaks);
  found.products = best_of(found.products, found.peaks.of(product_arithmetic(result.plan.format)));
  found.attention = best_of(found.attention, found.peaks.of_attention(result.plan.kv_format()));
  return found;
}

double efficiency(const Bound& bound, double measured_seconds) {
  return measured_seconds > 0 ? bound.seconds / measured_seconds : 0;
}

TimeByCause time_by_cause(std::span<const LoggedSweep> sweeps) {
  TimeByCause time;
  for (const LoggedSweep& work : sweeps) {
    ++time.sweeps;
    time.seconds += work.seconds;
    time.weights_wait_seconds += work.weights_wait_seconds;
    time.kv_wait_seconds += work.kv_wait_seconds;
    time.activations_wait_seconds += work.activations_wait_seconds;
    time.staging_wait_seconds += work.staging_wait_seconds;
    time.disk_read_bytes += static_cast<uint64_t>(work.disk_read_bytes);
    time.disk_write_bytes += static_cast<uint64_t>(work.disk_write_bytes);
    time.to_device_bytes += static_cast<uint64_t>(work.to_device_bytes);
    time.to_host_bytes += static_cast<uint64_t>(work.to_host_bytes);
  }
  time.compute_seconds =
      std::max(0.0, time.seconds - time.weights_wait_seconds - time.kv_wait_seconds -
                        time.activations_wait_seconds - time.staging_wait_seconds);
  return time;
}

std::vector<LoggedSweep> prefill_sweeps(std::span<const LoggedSweep> sweeps) {
  std::vector<LoggedSweep> some;
  std::copy_if(sweeps.begin(), sweeps.end(), std::back_inserter(some), has_prompt);
  return some;
}

std::vector<LoggedSweep> steady_sweeps(std::span<const LoggedSweep> sweeps) {
  int64_t begun = 0;  // Sequences that have their first token
  size_t first = 0, end = 0;
  for (size_t i = 0; i < sweeps.size(); ++i) {
    // All that have begun decode until they end.
    if (sweeps[i].decoding - sweeps[i].drafted == begun && first == i) first = i + 1;
    begun += sweeps[i].prompts;
    if (has_prompt(sweeps[i])) end = i + 1;
  }
  if (first >= end) return {};
  return {sweeps.begin() + static_cast<ptrdiff_t>(first),
          sweeps.begin() + static_cast<ptrdiff_t>(end)};
}

int64_t generated_tokens(std::span<const LoggedSweep> sweeps) {
  int64_t tokens = 0;
  for (const LoggedSweep& sweep : sweeps) tokens += sweep.decoding + sweep.prompts;
  return tokens;
}

std::vector<LoggedSweep> decode_sweeps(std::span<const LoggedSweep> sweeps) {
  std::vector<LoggedSweep> some;
  std::remove_copy_if(sweeps.begin(), sweeps.end(), std::back_inserter(some), has_prompt);
  return some;
}

}  // namespace spillway
