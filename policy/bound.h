// Lower bounds on a run's time: how long its sweeps must have taken on this machine, from rates
// measured around it. They are the `bound` of `bench --json`. Pure arithmetic, any thread.
//
// A resource's time is the work that was needed at the highest rate the resource can do: the cost
// model's resource_seconds() of what the engine logged, at these rates. Two bounds are made of such
// times:
//
//   sweep by sweep       every sweep takes as long as its slowest resource, one sweep after the
//                        other: `seconds`. A schedule that works for the next sweep during this one
//                        (as the engine reads ahead) can beat it.
//   any schedule         no resource can do its work of the whole run in less:
//                        `seconds_any_schedule`.
//
// The resources, where the bound asks for less than the cost model of a plan:
//
//   compute     the matrix products and attention of prompts. The last layer counts only for what
//               reaches logits: keys and values of all rows, everything else for the rows that the
//               head reads (and all rows' queries where their scores decide what a cache keeps).
//   memory      the kernels' reads: every weight once, whichever tier it came from, and the cached
//               rows of decode. Rows read by CPU attention beside a device are not counted.
//               Transfers from and to disk are DMA past the cores, whose reading rate the ceiling
//               is, so they are not counted here.
//   host to device, device to host   the bytes over each direction of that link, for discrete
//               devices
//   disk read, disk write   the bytes over each link. One device serves both, yet each is compared
//               with its own rate alone: how much they disturb each other is what a schedule can
//               change.
//
// The caller chooses the rates (Ceilings): the hardware's, or those of measured kernels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/model_shape.h"
#include "policy/cost_model.h"
#include "policy/sweep_work.h"

namespace spillway {

// A matrix product's measured speed: `rows` activations times [outputs, inputs].
struct MatrixRate {
  int64_t rows = 0, outputs = 0, inputs = 0;
  double flops_per_second = 0;
};

// Rates as measured around a run. 0: not measured, since the run was expected to transfer nothing
// there; bytes that it transferred all the same take no time. If the machine's peak of matrix
// products is given, it holds for all of them; else each is as fast as its kernel was at the
// largest measured batch size that is not above its micro-batch's (the smallest, where all are
// above it).
struct Ceilings final : SweepRates {
  double products = 0;  // The peak of matrix products, FLOP/s; 0: as kernels were measured
  std::vector<MatrixRate> matrix;  // Every shape at one batch size at least

  double seconds_per_weight(const LinearShape& linear, int64_t rows,
                            int64_t batch_rows) const override;
};

struct Bound {
  Resource resource = Resource::kCompute;  // The resource that was slowest for the longest time
  double seconds = 0;                      // Bound sweep by sweep
  double seconds_any_schedule = 0;
  ResourceSeconds busy{};  // Times of the whole run
};

// The bound of a run. Of the plan it reads the shape and the bytes of weights and of a cached row.
// `keeps_by_score`: the KV rule reads the attention of every row of a prompt. REQUIRES: ceilings
// has positive rates of prompt attention and memory.
Bound bound_of(const CostedPlan& plan, bool keeps_by_score, const Ceilings& ceilings,
               std::span<const SweepWork> run);

// The least time of one sweep: that of its slowest resource, as in Bound::seconds. `rates` as in
// bound_of(), those of a profile by way of bound_rates().
double bound_seconds(const CostedPlan& plan, bool keeps_by_score, const SweepRates& rates,
                     const SweepWork& work);

// A profile's rates without what it has for predictions alone, since another engine might do
// without: time that the CPU takes for the disk, that ops and round trips take however little they
// move, that attention takes beyond reading its rows, and that transfers take of the host's memory.
MachineRates bound_rates(MachineRates rates);

}  // namespace spillway
