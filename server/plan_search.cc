#include "server/plan_search.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "policy/placement_program.h"
#include "server/memory_budget.h"
#include "server/plan_cost.h"

namespace spillway {

namespace {

// A larger block gains little and delays its first tokens by hours on a small machine; --block says
// otherwise.
constexpr int64_t kBlockMost = 1024;

// Plans whose predictions differ by less are equals.
constexpr double kEqual = 0.005;

// Of a share found by the linear program, as whole per cents: the faster tiers are rounded down.
TierPercent percent_of(const TierShares& shares) {
  constexpr double kNone = 1e-9;
  if (shares.disk <= kNone && shares.host <= kNone) return {100, 0, 0};
  const auto whole = [&](double share) {
    return static_cast<int>(std::floor(100 * share + kNone));
  };
  TierPercent percent = {whole(shares.device), whole(shares.host), 0};
  const int rest = 100 - percent[0] - percent[1];
  // What rounding leaves over goes to the slowest tier in use.
  percent[shares.disk > kNone ? 2 : 1] += rest;
  return percent;
}

// The same of bytes.
TierPercent percent_of(const TierBytes& bytes) {
  const auto sum = static_cast<double>(bytes.device + bytes.host + bytes.disk);
  if (sum <= 0) return {100, 0, 0};
  return percent_of(TierShares{static_cast<double>(bytes.device) / sum,
                               static_cast<double>(bytes.host) / sum,
                               static_cast<double>(bytes.disk) / sum});
}

// What a plan keeps on slower tiers.
uint64_t bytes_away(const CostedChoice& choice) {
  const RuntimePlan& plan = choice.runtime->plan();
  uint64_t away = plan.weights.disk + plan.kv.disk + plan.activations.disk;
  if (choice.plan.own_memory) away += plan.weights.host + plan.kv.host + plan.activations.host;
  return away;
}

// More tokens a second; of equals the one that moves less.
bool better(const CostedChoice& a, const CostedChoice& b) {
  const double speed = a.prediction.tokens_per_second(), other = b.prediction.tokens_per_second();
  if (std::abs(speed - other) > kEqual * other) return speed > other;
  return bytes_away(a) < bytes_away(b);
}

constexpr TierPercent kAllOnDevice = {100, 0, 0}, kAllOnDisk = {0, 0, 100};

class Search {
 public:
  explicit Search(const PlanQuestion& question) : question_(question) {}

  Result<CostedChoice> run() {
    if (question_.flags.block) {
      try_block(*question_.flags.block);
    } else {
      try_blocks();
    }
    if (!best_) return first_error_;
    return pinned();
  }

  int64_t tried() const { return tried_; }

 private:
  // Every power of two, to the last: throughput may fall and rise again where a larger block pushes
  // weights out of memory. Then between the best one's neighbours.
  void try_blocks() {
    int64_t most = 0;
    for (const RequestGroup& group : question_.workload) {
      most = std::min(kBlockMost, most + (group.count > 0 ? group.count : kBlockMost));
    }
    for (int64_t block = 1; block < most; block *= 2) try_block(block);
    try_block(most);
    if (!best_) return;
    for (double step = 0.25; step > 0.03; step /= 2) {
      const auto around = static_cast<double>(*best_->flags.block);
      for (const double factor : {1 - step, 1 + step}) {
        try_block(std::clamp<int64_t>(std::llround(around * factor), 1, most));
      }
    }
  }

  void try_block(int64_t block) {
    if (!done_.insert(block).second) return;
    EngineFlags flags = question_.flags;
    flags.block = block;
    if (flags.micro_batch && *flags.micro_batch > block) return;
    consider(flags);
    for (const bool weights_stream : {false, true}) {
      for (const bool kv_leaves : {false, true}) {
        if (weights_stream || kv_leaves) try_shares(flags, weights_stream, kv_leaves);
      }
    }
  }

  // What the linear program makes of a block, when weights may or may not pass through and the
  // cache may or may not leave the device. What a plan with all of them away takes for buffers is
  // taken from the room first.
  void try_shares(EngineFlags flags, bool weights_stream, bool kv_leaves) {
    if (flags.weights && flags.kv) return;  // Nothing is open.
    EngineFlags away = flags;
    if (!away.weights) away.weights = weights_stream ? kAllOnDisk : kAllOnDevice;
    if (!away.kv) away.kv = kv_leaves ? kAllOnDisk : kAllOnDevice;
    const Result<CostedChoice> probe = place(away);
    if (!probe.ok()) return;
    PlacementRoom room = room_of(probe.value());
    room.weights_stream = weights_stream;
    room.kv_leaves = kv_leaves;
    const Result<MachineRates> rates = MachineRates::of(*question_.hardware, probe->plan);
    if (!rates.ok()) return;
    const auto shares = best_shares(probe->plan, rates.value(), probe->sweeps, room);
    if (!shares.ok()) return;
    if (!flags.weights) flags.weights = percent_of(shares->weights);
    if (!flags.kv) flags.kv = percent_of(shares->kv);
    consider(flags);
  }

  PlacementRoom room_of(const CostedChoice& probe) const {
    const RuntimePlan& plan = probe.runtime->plan();
    const auto left = [](uint64_t budget, uint64_t taken) {
      return budget - std::min(budget, taken);
    };
    PlacementRoom room;
    room.weights = plan.weights.device + plan.weights.host + plan.weights.disk;
    room.kv = probe.kv_bytes_wanted;
    const uint64_t host =
        left(plan.budget_bytes, kProcessBytes + plan.staging_bytes + plan.activations.host +
                                    (probe.plan.own_memory ? 0 : plan.activations.device));
    if (probe.plan.own_memory) {
      room.device = left(plan.device_budget_bytes,
                         kDeviceProcessBytes + plan.device_staging_bytes + plan.activations.device);
      room.host = host;
    } else {
      room.device = host;
    }
    room.disk = static_cast<uint64_t>(question_.hardware->disk.free_bytes.value);
    if (!question_.flags.dummy_weights) room.disk += room.weights;  // They are there already.
    return room;
  }

  Result<CostedChoice> place(const EngineFlags& flags) {
    ++tried_;
    Result<CostedChoice> choice = evaluate_plan(question_, flags);
    if (!choice.ok() && first_error_.ok()) first_error_ = choice.status();
    return choice;
  }

  void consider(const EngineFlags& flags) {
    Result<CostedChoice> choice = place(flags);
    if (choice.ok() && (!best_ || better(choice.value(), *best_))) {
      best_ = std::move(choice).value();
    }
  }

  // The best with its shares as whole per cents, placed again: what the flags will do.
  Result<CostedChoice> pinned() {
    EngineFlags flags = best_->flags;
    const RuntimePlan& plan = best_->runtime->plan();
    if (!flags.weights) flags.weights = percent_of(plan.weights);
    if (!flags.kv) flags.kv = percent_of(plan.kv);
    if (!flags.activations) flags.activations = percent_of(plan.activations);
    Result<CostedChoice> placed = place(flags);
    // A per cent of the weights more on disk makes room for what rounding took.
    while (!placed.ok() && !question_.flags.weights && (*flags.weights)[0] > 0) {
      --(*flags.weights)[0];
      ++(*flags.weights)[2];
      placed = place(flags);
    }
    return placed.ok() ? std::move(placed) : Result<CostedChoice>(*best_);
  }

  const PlanQuestion& question_;
  std::optional<CostedChoice> best_;
  std::set<int64_t> done_;
  Status first_error_;
  int64_t tried_ = 0;
};

}  // namespace

Result<CostedChoice> evaluate_plan(const PlanQuestion& question, const EngineFlags& flags) {
  RuntimeOptions options;
  options.plan_only = true;
  options.hardware = question.hardware;
  options.prefill_tokens_max = question.prefill_tokens;
  for (const RequestGroup& group : question.workload) {
    if (!question.lengths_known) break;
    options.prompt_tokens = std::max(options.prompt_tokens, group.prompt_tokens);
    options.new_tokens = std::max(options.new_tokens, group.new_tokens);
  }
  CostedChoice choice;
  choice.flags = flags;
  SPILLWAY_ASSIGN_OR_RETURN(choice.runtime, Runtime::open(question.model, flags, options));
  choice.plan = costed_plan(*choice.runtime, question.workload, !flags.no_overlap);
  SPILLWAY_ASSIGN_OR_RETURN(const MachineRates rates,
                            MachineRates::of(*question.hardware, choice.plan));
  SPILLWAY_ASSIGN_OR_RETURN(choice.sweeps, planned_sweeps(*choice.runtime, question.workload));
  choice.kv_bytes_wanted = kv_bytes_wanted(*choice.runtime, question.workload);
  choice.prediction = predict(choice.plan, rates, choice.sweeps);
  return choice;
}

Result<CostedChoice> find_plan(const PlanQuestion& question, int64_t* tried) {
  Search search(question);
  Result<CostedChoice> found = search.run();
  if (tried != nullptr) *tried = search.tried();
  return found;
}

}  // namespace spillway
