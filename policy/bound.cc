#include "policy/bound.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/linear_shapes.h"

namespace spillway {

namespace {

// The slowest resource; compute where it is one of several.
Resource slowest(const ResourceSeconds& seconds) {
  return static_cast<Resource>(std::max_element(seconds.begin(), seconds.end()) - seconds.begin());
}

// A sweep's resource times for the least work that any engine must do: rows of the last layer that
// reach no logit are not needed, weights are read once, activations need not pass through memory,
// and resources that were not measured take no time.
ResourceSeconds least_seconds(const CostedPlan& plan, bool keeps_by_score,
                              const SweepRates& ceilings, const SweepWork& work) {
  const MicroBatch all{0, static_cast<size_t>(std::min(work.logit_rows, work.tokens())),
                       work.tokens()};
  ResourceSeconds seconds = resource_seconds(plan, work,
                                             {.micro_batches = {&all, 1},
                                              .head_rows = 0,
                                              .last_layer_attends = keeps_by_score,
                                              .activations = false},
                                             ceilings);
  const std::pair<Resource, double> links[] = {{Resource::kDiskRead, ceilings.disk_read},
                                               {Resource::kDiskWrite, ceilings.disk_write},
                                               {Resource::kHostToDevice, ceilings.to_device},
                                               {Resource::kDeviceToHost, ceilings.to_host},
                                               {Resource::kHostCompute, ceilings.host_attention}};
  for (const auto& [resource, rate] : links) {
    if (rate <= 0) seconds[index(resource)] = 0;
  }
  return seconds;
}

}  // namespace

double Ceilings::seconds_per_weight(const LinearShape& linear, int64_t rows,
                                    int64_t batch_rows) const {
  const double flops = 2 * static_cast<double>(rows);
  if (products > 0) return flops / products;
  const MatrixRate* best = nullptr;
  for (const MatrixRate& rate : matrix) {
    if (rate.outputs != linear.outputs || rate.inputs != linear.inputs) continue;
    const bool closer = best == nullptr || (rate.rows <= batch_rows && rate.rows > best->rows) ||
                        (best->rows > batch_rows && rate.rows < best->rows);
    if (closer) best = &rate;
  }
  SPILLWAY_CHECK(best != nullptr && best->flops_per_second > 0);
  return flops / best->flops_per_second;
}

Bound bound_of(const CostedPlan& plan, bool keeps_by_score, const Ceilings& ceilings,
               std::span<const SweepWork> run) {
  SPILLWAY_CHECK(ceilings.prompt_attention > 0 && ceilings.memory > 0);
  ResourceSeconds slowest_seconds{};  // Sums over the sweeps that each resource bounds
  Bound bound;
  for (const SweepWork& work : run) {
    const ResourceSeconds sweep = least_seconds(plan, keeps_by_score, ceilings, work);
    const Resource limit = slowest(sweep);
    slowest_seconds[index(limit)] += sweep[index(limit)];
    bound.seconds += sweep[index(limit)];
    for (size_t r = 0; r < kResources; ++r) bound.busy[r] += sweep[r];
  }
  bound.resource = slowest(slowest_seconds);
  bound.seconds_any_schedule = bound.busy[index(slowest(bound.busy))];
  return bound;
}

double bound_seconds(const CostedPlan& plan, bool keeps_by_score, const SweepRates& rates,
                     const SweepWork& work) {
  const ResourceSeconds sweep = least_seconds(plan, keeps_by_score, rates, work);
  return sweep[index(slowest(sweep))];
}

MachineRates bound_rates(MachineRates rates) {
  rates.compute_per_disk_byte = 0;
  rates.small_op = rates.round_trip = 0;
  rates.decode_attention = rates.host_attention = rates.host_memory = 0;
  return rates;
}

}  // namespace spillway
