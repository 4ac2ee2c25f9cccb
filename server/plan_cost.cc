#include "server/plan_cost.h"

#include <algorithm>

#include "kernels/base/checked_math.h"
#include "kernels/base/units.h"
#include "kernels/kv_layout.h"
#include "kernels/kv_state.h"
#include "kernels/weight_layout.h"
#include "offload/io.h"
#include "policy/bound.h"
#include "scheduler/engine/engine_buffers.h"

namespace spillway {

namespace {

double share(uint64_t part, const TierBytes& all) {
  const uint64_t sum = all.device + all.host + all.disk;
  return sum == 0 ? 0 : static_cast<double>(part) / static_cast<double>(sum);
}

// One layer of a sequence's cache when it ends, in bytes.
struct LayerCache {
  int64_t slots;
  uint64_t state, rows, block;
  uint64_t bytes() const { return state + rows; }
};

LayerCache layer_cache(const ModelShape& shape, const RuntimePlan& plan,
                       const RequestGroup& group) {
  const KvBudget budget = resolve(plan.kv_rule, group.prompt_tokens, group.new_tokens);
  const int64_t positions = kv_positions(group.prompt_tokens, group.new_tokens);
  const KvLayout layout = kv_layout(shape, plan.kv_format);
  const int64_t slots = budget.slots(positions);
  return {slots, KvStateLayout{shape.kv_heads, budget}.bytes(), layout.sequence_bytes(slots),
          layout.block_bytes()};
}

}  // namespace

CostedPlan costed_plan(Runtime& runtime, std::span<const RequestGroup> workload, bool overlap) {
  const ModelShape& shape = runtime.shape();
  const RuntimePlan& plan = runtime.plan();
  CostedPlan found;
  found.shape = shape;
  found.format = plan.format;
  found.kv_format = plan.kv_format;
  const MatrixLayout layout = runtime.device().matrix_layout(plan.format);
  for (const LinearShape& linear : linear_shapes(shape)) {
    found.weight_bytes += packed_bytes(layout, plan.format, linear.outputs, linear.inputs) *
                          static_cast<uint64_t>(linear.count);
  }
  found.own_memory = !runtime.device().shares_host_memory();
  found.weights_from_disk = plan.weights.disk;
  if (found.own_memory) found.weights_to_device = plan.weights.host + plan.weights.disk;

  const auto layers = static_cast<uint64_t>(shape.layers);
  for (const RequestGroup& group : workload) {
    const LayerCache cache = layer_cache(shape, plan, group);
    const auto slots = static_cast<uint64_t>(std::max<int64_t>(1, cache.slots));
    found.kv_row_bytes = std::max(found.kv_row_bytes, cache.bytes() * layers / slots);
    // A step changes its own block of rows; a rule that remembers moves a row and its state.
    const uint64_t changed = round_up(cache.block, kIoAlignment) * (cache.state > 0 ? 2 : 1) +
                             round_up(cache.state, kIoAlignment);
    found.kv_sent_bytes = std::max(found.kv_sent_bytes, changed * layers);
  }
  found.kv_on_disk = share(plan.kv.disk, plan.kv);
  if (found.own_memory) {
    found.kv_on_host = share(plan.kv.host, plan.kv);
    found.activations_on_host = share(plan.activations.host, plan.activations);
  }
  found.activations_on_disk = share(plan.activations.disk, plan.activations);
  found.micro_batch_tokens = plan.micro_batch_tokens;
  found.micro_batch_sequences = plan.micro_batch_sequences;
  found.head_rows = kHeadRows;
  found.overlap = overlap;
  return found;
}

Result<std::vector<PlannedSweeps>> planned_sweeps(Runtime& runtime,
                                                  std::span<const RequestGroup> workload) {
  const ModelShape& shape = runtime.shape();
  const RuntimePlan& plan = runtime.plan();
  const uint64_t kv_bytes = plan.kv.device + plan.kv.host + plan.kv.disk;
  std::vector<KvReservation> reservations;
  std::vector<RequestGroup> groups(workload.begin(), workload.end());
  for (RequestGroup& group : groups) {
    const LayerCache cache = layer_cache(shape, plan, group);
    const KvBudget budget = resolve(plan.kv_rule, group.prompt_tokens, group.new_tokens);
    const int64_t positions = kv_positions(group.prompt_tokens, group.new_tokens);
    reservations.push_back(
        {cache.bytes() * static_cast<uint64_t>(shape.layers), budget.rows(positions)});
    if (reservations.back().bytes > kv_bytes) {
      return Status(Code::kInfeasible, "the KV cache of one sequence of " +
                                           std::to_string(positions) + " positions takes " +
                                           format_bytes(reservations.back().bytes) +
                                           ", and the plan has " + format_bytes(kv_bytes) +
                                           "; plan with these lengths, or with more memory");
    }
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].count > 0) continue;
    groups[i].count = plan.block_sequences;
    if (reservations[i].bytes > 0) {
      groups[i].count =
          std::min(groups[i].count, static_cast<int64_t>(kv_bytes / reservations[i].bytes));
    }
  }
  return plan_sweeps(groups, reservations,
                     {.block_sequences = plan.block_sequences,
                      .prefill_tokens = plan.prefill_tokens,
                      .kv_bytes = kv_bytes});
}

uint64_t kv_bytes_wanted(Runtime& runtime, std::span<const RequestGroup> workload) {
  uint64_t sequence = 0;
  for (const RequestGroup& group : workload) {
    sequence = std::max(sequence, layer_cache(runtime.shape(), runtime.plan(), group).bytes() *
                                      static_cast<uint64_t>(runtime.shape().layers));
  }
  return sequence * static_cast<uint64_t>(runtime.plan().block_sequences);
}

Result<Prediction> predict(Runtime& runtime, const HardwareProfile& hardware,
                           std::span<const RequestGroup> workload, bool overlap) {
  const CostedPlan plan = costed_plan(runtime, workload, overlap);
  SPILLWAY_ASSIGN_OR_RETURN(const MachineRates rates, MachineRates::of(hardware, plan));
  SPILLWAY_ASSIGN_OR_RETURN(const auto sweeps, planned_sweeps(runtime, workload));
  return predict(plan, rates, sweeps);
}

}  // namespace spillway
