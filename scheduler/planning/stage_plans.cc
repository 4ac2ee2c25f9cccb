#include "scheduler/planning/stage_plans.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "offload/rank_memory.h"
#include "scheduler/planning/plan_cost.h"

namespace spillway {

namespace {

constexpr int64_t kLargestBlock = 1024;  // That is tried, of each sub-block
// Prompt tokens of a sweep that are tried beside the default: fewer leave more memory to the cache,
// and fill the stages sooner.
constexpr int64_t kPrefillTokens[] = {1024, 512, 256, 128, 64};

// A rank's plan as that of a model that has its layers alone.
Plan alone(Plan plan, const LayerRange& layers) {
  ModelShape& shape = plan.shape;
  if (!shape.sliding_layers.empty()) {
    const auto first = shape.sliding_layers.begin() + layers.first;
    shape.sliding_layers = std::vector<uint8_t>(first, first + layers.count);
  }
  for (uint64_t& bytes : plan.mixed_bytes) {
    bytes = bytes * static_cast<uint64_t>(layers.count) / static_cast<uint64_t>(shape.layers);
  }
  shape.layers = layers.count;
  return plan;
}

// What one of so many sub-blocks has of a block's requests.
std::vector<RequestGroup> part_of(std::span<const RequestGroup> workload, int64_t sub_blocks) {
  std::vector<RequestGroup> groups(workload.begin(), workload.end());
  for (RequestGroup& group : groups) {
    if (group.count > 0) group.count = (group.count + sub_blocks - 1) / sub_blocks;
  }
  return groups;
}

}  // namespace

Result<std::vector<LayerRange>> cut_layers(const ModelFileTable& table, const EngineFlags& flags,
                                           std::span<const StageMachine> ranks) {
  const ModelShape& shape = table.shape;
  const auto count = static_cast<int64_t>(ranks.size());
  if (shape.layers < count) {
    return invalid_argument("--stages " + std::to_string(count) + " is more than the model's " +
                            std::to_string(shape.layers) + " layers");
  }
  std::vector<int64_t> layers;  // By rank
  if (flags.stage_layers) {
    layers = *flags.stage_layers;
    const int64_t sum = std::accumulate(layers.begin(), layers.end(), int64_t{0});
    if (sum != shape.layers) {
      return invalid_argument("--stage-layers has " + std::to_string(sum) +
                              " layers, and the model has " + std::to_string(shape.layers));
    }
  } else {
    const auto bytes = [&](LayerRange range) { return weight_bytes_of_ranks(table, range); };
    const uint64_t layer = shape.layers > 2 ? bytes({1, 1}) : bytes({0, 1});
    const auto beside = [&](uint64_t all) { return all - std::min(all, layer); };
    std::vector<StageMachine> machines(ranks.begin(), ranks.end());
    machines[0].other_bytes = beside(bytes({shape.layers - 1, 1}));
    machines[0].other_layers = static_cast<double>(machines[0].other_bytes) /
                               static_cast<double>(std::max<uint64_t>(1, layer));
    if (count > 1) machines[1].other_bytes = beside(bytes({0, 1}));
    layers = split_layers(shape.layers, layer, machines);
  }
  std::vector<LayerRange> ranges(ranks.size());
  int64_t first = 0;
  for (size_t i = 1; i <= ranks.size(); ++i) {
    LayerRange& range = ranges[i % ranks.size()];
    range = {first, layers[i % ranks.size()]};
    first += range.count;
  }
  return ranges;
}

Result<StagedPlan> plan_stages(const ModelToPlan& model, std::span<const StageHost> ranks,
                               std::span<const LayerRange> layers, const EngineFlags& flags,
                               const PlanWishes& wishes, std::span<const RequestGroup> workload,
                               double network) {
  StagedPlan staged;
  staged.layers.assign(layers.begin(), layers.end());
  const auto count = static_cast<int64_t>(ranks.size());
  std::vector<StageCost> costs;
  std::optional<Plan> tightest;  // Whose cache has room for the fewest sequences
  uint64_t least = UINT64_MAX;
  for (size_t i = 0; i < ranks.size(); ++i) {
    PlanWishes own = wishes;
    own.layers = layers[i];
    Result<Plan> made = make_plan(model, ranks[i].machine, flags, own);
    if (!made.ok()) return made.status().at("rank " + std::to_string(i));
    staged.plans.push_back(std::move(made).value());
    Plan plan = alone(staged.plans.back(), layers[i]);
    CostedPlan costed = costed_plan(plan, workload);
    costed.head = layers[i].has_head(model.shape());
    SPILLWAY_ASSIGN_OR_RETURN(MachineRates rates, MachineRates::of(*ranks[i].hardware, costed));
    costs.push_back({std::move(costed), std::move(rates)});
    const uint64_t kv =
        (plan.kv.device + plan.kv.host + plan.kv.disk) / static_cast<uint64_t>(layers[i].count);
    if (kv >= least) continue;
    least = kv;
    tightest = std::move(plan);
  }
  std::rotate(costs.begin(), costs.begin() + 1, costs.end());
  // A sub-block's sweeps, in its part of the cache.
  Plan& sub = *tightest;
  sub.scheduling.block_sequences_max = (sub.block_sequences() + count - 1) / count;
  for (TierBytes* bytes : {&sub.kv, &sub.placement.kv}) {
    for (uint64_t* tier : {&bytes->device, &bytes->host, &bytes->disk}) {
      *tier /= static_cast<uint64_t>(count);
    }
  }
  SPILLWAY_ASSIGN_OR_RETURN(const auto sweeps, planned_sweeps(sub, part_of(workload, count)));
  staged.prediction = predict_stages(costs, sweeps, network);
  return staged;
}

Result<StagedPlan> find_stage_plan(const ModelToPlan& model, std::span<const StageHost> ranks,
                                   std::span<const LayerRange> layers, const EngineFlags& flags,
                                   const PlanWishes& wishes, std::span<const RequestGroup> workload,
                                   double network) {
  std::vector<EngineFlags> choices = {flags};
  if (!flags.prefill_tokens) {
    for (const int64_t tokens : kPrefillTokens) {
      choices.push_back(flags);
      choices.back().prefill_tokens = tokens;
    }
  }
  std::optional<StagedPlan> best;
  Status smallest;  // Why the first that was tried does not fit
  const auto look_at = [&](const EngineFlags& some) {
    Result<StagedPlan> plan = plan_stages(model, ranks, layers, some, wishes, workload, network);
    if (!plan.ok() && smallest.ok()) smallest = plan.status();
    if (!plan.ok()) return;
    const double rate = plan->prediction.tokens_per_second();
    if (!best || rate > best->prediction.tokens_per_second()) best = std::move(plan).value();
  };
  for (EngineFlags& some : choices) {
    if (flags.block) {
      look_at(some);
      continue;
    }
    for (int64_t block = 1; block <= kLargestBlock; block *= 2) {
      some.block = block * static_cast<int64_t>(ranks.size());
      look_at(some);
    }
  }
  if (!best) return smallest;
  return std::move(*best);
}

}  // namespace spillway
