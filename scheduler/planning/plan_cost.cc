#include "scheduler/planning/plan_cost.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/checked_math.h"
#include "kernels/base/linear_shapes.h"
#include "kernels/base/units.h"
#include "kernels/kv_layout.h"
#include "kernels/weight_layout.h"
#include "offload/io/io.h"
#include "policy/bound.h"
#include "scheduler/block_scheduler.h"
#include "scheduler/engine/engine_buffers.h"
#include "scheduler/sequence.h"

namespace spillway {

namespace {

double share(uint64_t part, const TierBytes& all) {
  const uint64_t sum = all.device + all.host + all.disk;
  return sum == 0 ? 0 : static_cast<double>(part) / static_cast<double>(sum);
}

KvBudget budget_of(const Plan& plan, const RequestGroup& group) {
  return resolve(apply(group.kv, plan.kv_rule()), group.prompt_tokens, group.new_tokens);
}

// Bytes of the beginning that a group's requests share, in whole KV blocks of all layers.
uint64_t shared_bytes(const Plan& plan, const RequestGroup& group) {
  const KvLayout layout = kv_layout(plan.shape, plan.kv_format());
  return static_cast<uint64_t>(group.shared_tokens / kKvBlockRows * plan.shape.layers) *
         layout.block_bytes();
}

// A sequence's cache: its layers without a sliding window and those with one, at their largest.
struct SequenceCache {
  struct Kind : KvLayer {
    uint64_t layers = 0;
    int64_t slots = 0;  // In the end
  };
  std::array<Kind, 2> kinds;

  template <class Of>
  uint64_t sum(const Of& of) const {
    uint64_t total = 0;
    for (const Kind& kind : kinds) total += kind.layers * of(kind);
    return total;
  }
  uint64_t bytes() const {
    return sum([](const Kind& kind) { return kind.memory_bytes; });
  }
};

SequenceCache cache_of(const ModelShape& shape, const Plan& plan, const RequestGroup& group) {
  const int64_t positions = kv_positions(group.prompt_tokens, group.new_tokens);
  const auto with_window = static_cast<uint64_t>(shape.layers_with_window());
  SequenceCache cache;
  cache.kinds[0].layers = static_cast<uint64_t>(shape.layers) - with_window;
  cache.kinds[1].layers = with_window;
  for (size_t i = 0; i < cache.kinds.size(); ++i) {
    SequenceCache::Kind& kind = cache.kinds[i];
    static_cast<KvLayer&>(kind) =
        kv_layer(kv_layout(shape, plan.kv_format()), i == 0 ? 0 : shape.sliding_window, positions,
                 budget_of(plan, group), chunks_of(group.prompt_tokens, plan.prefill_tokens()));
    kind.slots = kind.budget.slots(positions);
  }
  return cache;
}

uint64_t kv_bytes(const Plan& plan) {
  return plan.kv.device + plan.kv.host + plan.kv.disk;
}

// Bytes that a request needs for itself.
uint64_t own_bytes(const Plan& plan, const RequestGroup& group) {
  const uint64_t bytes = cache_of(plan.shape, plan, group).bytes();
  // A limited budget's rows are its own in any case.
  if (!budget_of(plan, group).full()) return bytes;
  return bytes - std::min(bytes, shared_bytes(plan, group));
}

// What the cache has beside the largest of the shared beginnings: groups run one after another.
uint64_t kv_bytes_free(const Plan& plan, std::span<const RequestGroup> groups) {
  uint64_t shared = 0;
  for (const RequestGroup& group : groups) shared = std::max(shared, shared_bytes(plan, group));
  return kv_bytes(plan) - std::min(kv_bytes(plan), shared);
}

SweepLimits limits_of(const Plan& plan, std::span<const RequestGroup> groups) {
  return {.block_sequences = plan.block_sequences(),
          .prefill_tokens = plan.prefill_tokens(),
          .prefill_target = plan.prefill_target(),
          .kv_bytes = kv_bytes_free(plan, groups),
          .positions_per_token = positions_per_token(plan.shape)};
}

// The KV reservation of each group's requests. kInfeasible: one request does not fit alone.
Result<std::vector<KvReservation>> reservations_of(const Plan& plan,
                                                   std::span<const RequestGroup> groups) {
  std::vector<KvReservation> reservations;
  for (const RequestGroup& group : groups) {
    const SequenceCache cache = cache_of(plan.shape, plan, group);
    const int64_t positions = kv_positions(group.prompt_tokens, group.new_tokens);
    KvReservation reservation{own_bytes(plan, group), cache.kinds[0].budget.rows(positions)};
    reservation.keeps_all_rows = budget_of(plan, group).full() && cache.kinds[1].layers == 0;
    if (cache.kinds[1].layers > 0) {
      reservation.window = plan.shape.sliding_window;
      reservation.window_rows_max = cache.kinds[1].budget.rows(positions);
      reservation.window_share =
          static_cast<double>(cache.kinds[1].layers) / static_cast<double>(plan.shape.layers);
    }
    reservations.push_back(reservation);
    if (reservations.back().bytes > kv_bytes_free(plan, groups)) {
      return Status(Code::kInfeasible, "the KV cache of one sequence of " +
                                           std::to_string(positions) + " positions takes " +
                                           format_bytes(reservations.back().bytes) +
                                           ", and the plan has " + format_bytes(kv_bytes(plan)) +
                                           "; plan with these lengths, or with more memory");
    }
  }
  return reservations;
}

// Picks `block` of `all` requests: every (all / block)-th in order, from the first.
std::vector<RequestGroup> drawn_evenly(std::vector<RequestGroup> groups, int64_t all,
                                       int64_t block) {
  int64_t before = 0;  // Requests in earlier groups
  for (RequestGroup& group : groups) {
    // Number of picks 0, all / block, 2 all / block, ... below `request`.
    const auto below = [&](int64_t request) { return (request * block + all - 1) / all; };
    const int64_t end = before + group.count;
    group.count = below(end) - below(before);
    before = end;
  }
  return groups;
}

// plan_sweeps() of the groups that have requests.
std::vector<PlannedSweeps> sweeps_of(std::span<const RequestGroup> groups,
                                     std::span<const KvReservation> reservations,
                                     const SweepLimits& limits) {
  std::vector<RequestGroup> some;
  std::vector<KvReservation> theirs;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].count == 0) continue;
    some.push_back(groups[i]);
    theirs.push_back(reservations[i]);
  }
  return plan_sweeps(some, theirs, limits);
}

}  // namespace

CostedPlan costed_plan(const Plan& plan, std::span<const RequestGroup> workload) {
  const ModelShape& shape = plan.shape;
  CostedPlan found;
  found.shape = shape;
  found.format = plan.format;
  found.kv_format = plan.kv_format();
  count_weight_bytes(
      [&](const LinearShape& linear) {
        const uint64_t all = plan.mixed_bytes[static_cast<size_t>(linear.role)];
        if (all > 0) return all / static_cast<uint64_t>(linear.count);
        return uint64_t{
            packed_bytes(plan.matrix_layout, plan.format, linear.outputs, linear.inputs)};
      },
      &found);
  found.weights_from_disk = plan.weights.disk;

  const auto layers = static_cast<uint64_t>(shape.layers);
  const uint64_t block = kv_layout(shape, plan.kv_format()).block_bytes();
  for (const RequestGroup& group : workload) {
    using Kind = SequenceCache::Kind;
    const SequenceCache cache = cache_of(shape, plan, group);
    // Of all layers, which have different numbers of slots where some have a window
    const uint64_t slots = std::max(
        layers, cache.sum([](const Kind& kind) { return static_cast<uint64_t>(kind.slots); }));
    found.kv_row_bytes = std::max(found.kv_row_bytes, cache.bytes() * layers / slots);
    // A step changes its own KV block; a rule with state also moves a row and its state.
    const uint64_t changed = cache.sum([&](const Kind& kind) {
      return round_up(block, kIoAlignment) * (kind.state_bytes > 0 ? 2 : 1) +
             kind.disk_state_bytes();
    });
    found.kv_sent_bytes = std::max(found.kv_sent_bytes, changed);
    for (const Kind& kind : cache.kinds) {
      found.kv_returns_whole |= plan.discrete && kind.layers > 0 && kind.state_bytes > 0;
    }
  }
  found.discrete = plan.discrete;
  found.weights_on_host = plan.placement.weights.host_bytes;
  found.kv_on_disk = share(plan.placement.kv.disk, plan.placement.kv);
  found.kv_on_host = share(plan.placement.kv.host, plan.placement.kv);
  found.host_attention = plan.host_attention();
  if (plan.discrete) found.activations_on_host = share(plan.activations.host, plan.activations);
  found.activations_on_disk = share(plan.activations.disk, plan.activations);
  found.micro_batch = {plan.micro_batch_tokens(), plan.micro_batch_sequences()};
  found.head_rows = kHeadRows;
  found.overlap = plan.engine.overlap;
  return found;
}

CostedPlan bounded_plan(const Plan& plan) {
  CostedPlan costed = costed_plan(plan, {});
  const ModelShape& shape = plan.shape;
  costed.kv_row_bytes = kv_layout(shape, plan.kv_format()).row_bytes() * 2 *
                        static_cast<size_t>(shape.kv_heads * shape.layers);
  return costed;
}

Result<SweepBound> sweep_bound(const Plan& plan, const HardwareProfile& hardware) {
  CostedPlan costed = bounded_plan(plan);
  SPILLWAY_ASSIGN_OR_RETURN(MachineRates rates, MachineRates::of(hardware, costed));
  return SweepBound(
      [costed = std::move(costed), rates = bound_rates(std::move(rates)),
       keeps_by_score = plan.kv_rule().kind == KvRuleKind::kH2o](const SweepWork& work) {
        return bound_seconds(costed, keeps_by_score, rates, work);
      });
}

Result<std::vector<PlannedSweeps>> planned_sweeps(const Plan& plan,
                                                  std::span<const RequestGroup> workload) {
  SPILLWAY_ASSIGN_OR_RETURN(const auto reservations, reservations_of(plan, workload));
  std::vector<RequestGroup> groups(workload.begin(), workload.end());
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].count > 0) continue;
    groups[i].count = plan.block_sequences();
    if (reservations[i].bytes > 0) {
      const uint64_t fit = kv_bytes_free(plan, groups) / reservations[i].bytes;
      groups[i].count = std::min(groups[i].count, static_cast<int64_t>(fit));
    }
  }
  return plan_sweeps(groups, reservations, limits_of(plan, groups));
}

std::vector<RequestGroup> thinned(std::span<const RequestGroup> workload, int64_t count) {
  int64_t all = 0;
  for (const RequestGroup& group : workload) all += group.count;
  std::vector<RequestGroup> groups =
      drawn_evenly(std::vector(workload.begin(), workload.end()), all, count);
  // A group without requests would stand for a block of them.
  std::erase_if(groups, [](const RequestGroup& group) { return group.count == 0; });
  return groups;
}

Result<std::vector<PlannedSweeps>> planned_block(const Plan& plan,
                                                 std::span<const RequestGroup> workload) {
  std::vector<RequestGroup> groups(workload.begin(), workload.end());
  std::stable_sort(groups.begin(), groups.end(), [](const RequestGroup& a, const RequestGroup& b) {
    return a.prompt_tokens + a.new_tokens > b.prompt_tokens + b.new_tokens;
  });
  SPILLWAY_ASSIGN_OR_RETURN(const auto reservations, reservations_of(plan, groups));
  int64_t all = 0;
  for (RequestGroup& group : groups) {
    if (group.count == 0) group.count = plan.block_sequences();
    all += group.count;
  }
  // Shrinks the block until the cache holds all of it.
  for (int64_t block = std::min(plan.block_sequences(), all);;) {
    const std::vector<RequestGroup> drawn = drawn_evenly(groups, all, block);
    uint64_t bytes = 0;
    for (size_t i = 0; i < drawn.size(); ++i) {
      bytes += static_cast<uint64_t>(drawn[i].count) * reservations[i].bytes;
    }
    const uint64_t all_bytes = kv_bytes_free(plan, groups);
    if (bytes <= all_bytes || block == 1) {
      return sweeps_of(drawn, reservations, limits_of(plan, groups));
    }
    const double part = static_cast<double>(all_bytes) / static_cast<double>(bytes);
    const auto fewer = static_cast<int64_t>(part * static_cast<double>(block));
    block = std::clamp<int64_t>(fewer, 1, block - 1);
  }
}

uint64_t kv_bytes_wanted(const Plan& plan, std::span<const RequestGroup> workload) {
  uint64_t sequence = 0, shared = 0;
  for (const RequestGroup& group : workload) {
    sequence = std::max(sequence, own_bytes(plan, group));
    shared = std::max(shared, shared_bytes(plan, group));
  }
  return sequence * static_cast<uint64_t>(plan.block_sequences()) + shared;
}

ResidualRows residual_rows(const Plan& plan) {
  const ModelShape& shape = plan.shape;
  const int64_t sweep = plan.engine.sweep_tokens_max;
  const int64_t micro_batch = std::min(sweep, std::max(plan.micro_batch_tokens(), shape.positions));
  const auto bytes = [&](int64_t rows) {
    return static_cast<uint64_t>(rows * shape.hidden) * sizeof(float);
  };
  return {bytes(sweep), bytes(micro_batch)};
}

Result<Prediction> predict(const Plan& plan, const HardwareProfile& hardware,
                           std::span<const RequestGroup> workload) {
  const CostedPlan costed = costed_plan(plan, workload);
  SPILLWAY_ASSIGN_OR_RETURN(const MachineRates rates, MachineRates::of(hardware, costed));
  SPILLWAY_ASSIGN_OR_RETURN(const auto sweeps, planned_sweeps(plan, workload));
  return predict(costed, rates, sweeps);
}

}  // namespace spillway
