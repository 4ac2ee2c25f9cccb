#include "scheduler/planning/plan_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "policy/placement_program.h"
#include "scheduler/planning/machine.h"
#include "scheduler/planning/memory_budget.h"
#include "scheduler/planning/plan_choices.h"
#include "scheduler/planning/plan_cost.h"
#include "scheduler/planning/profile_traits.h"

namespace spillway {

namespace {

// Largest block tried: a larger one gains little and delays its first tokens by hours on a small
// machine; --block overrides it.
constexpr int64_t kBlockMost = 1024;

// Parts of the prompt tokens for which sequences that end make room (Search::target_of()). Above 1
// the block is filled sooner than it empties.
constexpr double kTargetParts[] = {1.25, 1.1, 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4};
constexpr double kTargetGains = 0.005;  // A smaller fraction is no gain.

// Prompt tokens that a workload computes for each that it generates; of an open number of requests,
// as many of each group.
double prompt_tokens_each(std::span<const RequestGroup> workload) {
  double prompts = 0, generated = 0;
  for (const RequestGroup& group : workload) {
    const auto count = static_cast<double>(std::max<int64_t>(1, group.count));
    prompts += count * static_cast<double>(group.computed_tokens());
    generated += count * static_cast<double>(group.new_tokens);
  }
  return generated > 0 ? prompts / generated : 0;
}

int64_t target_of(int64_t block, double part, double prompt_tokens_each) {
  const double tokens = part * static_cast<double>(block) * prompt_tokens_each;
  return std::max<int64_t>(1, std::llround(tokens));
}

// A KV share with a little in host memory: a probe with it includes the buffers of CPU attention.
constexpr TierPercent kSomeOnHost = {0, 1, 99};

// The slowest tier the KV cache may use: each slower tier takes staging memory.
enum class KvReach : uint8_t { kDevice, kHost, kDisk };

// Makes and costs plans for a question. The machine, and the model in each format, do not depend on
// the flags that a search varies and are opened once.
class Evaluator {
 public:
  static Result<Evaluator> open(const PlanQuestion& question) {
    Evaluator made(question);
    if (question.machine != nullptr) {
      made.machine_ = *question.machine;
    } else {
      SPILLWAY_ASSIGN_OR_RETURN(made.machine_,
                                machine_of_profile(*question.hardware, question.flags));
    }
    if (question.opened != nullptr) made.models_.emplace(question.flags.format, *question.opened);
    made.wishes_ = question.wishes;
    for (const RequestGroup& group : question.workload) {
      if (!question.lengths_known) break;
      made.wishes_.prompt_tokens = std::max(made.wishes_.prompt_tokens, group.prompt_tokens);
      made.wishes_.new_tokens = std::max(made.wishes_.new_tokens, group.new_tokens);
    }
    return made;
  }

  // Costs a run of all requests or, to compare plans quickly, one of some blocks as if it went on
  // alike: the costs of its beginning and its end are known, and of the blocks between.
  Result<CostedChoice> evaluate(const EngineFlags& flags, bool all = false) {
    SPILLWAY_ASSIGN_OR_RETURN(const ModelToPlan model, model_in(flags));
    SPILLWAY_ASSIGN_OR_RETURN(Plan plan, make_plan(model, machine_, flags, wishes_));
    CostedChoice choice;
    choice.flags = flags;
    choice.plan = std::make_shared<const Plan>(std::move(plan));
    const std::vector<RequestGroup>& workload = question_->workload;
    choice.costed = costed_plan(*choice.plan, workload);
    SPILLWAY_ASSIGN_OR_RETURN(const MachineRates rates,
                              MachineRates::of(*question_->hardware, choice.costed));
    choice.kv_bytes_wanted = kv_bytes_wanted(*choice.plan, workload);
    const int64_t some = kBlocksCosted * choice.plan->block_sequences();
    if (all || requests() <= 2 * some) {
      SPILLWAY_ASSIGN_OR_RETURN(choice.sweeps, planned_sweeps(*choice.plan, workload));
      choice.prediction = predict(choice.costed, rates, choice.sweeps);
    } else {
      SPILLWAY_ASSIGN_OR_RETURN(const auto fewer,
                                planned_sweeps(*choice.plan, thinned(workload, some / 2)));
      SPILLWAY_ASSIGN_OR_RETURN(choice.sweeps,
                                planned_sweeps(*choice.plan, thinned(workload, some)));
      const int64_t half = some - some / 2;
      choice.prediction = prolonged(
          predict(choice.costed, rates, fewer), predict(choice.costed, rates, choice.sweeps),
          static_cast<double>(requests() - some) / static_cast<double>(half));
    }
    SPILLWAY_ASSIGN_OR_RETURN(const auto block, planned_block(*choice.plan, workload));
    for (const PlannedSweeps& sweeps : block) choice.sequences += sweeps.work.prompts;
    choice.latency_seconds = predict(choice.costed, rates, block).seconds();
    return choice;
  }

 private:
  static constexpr int64_t kBlocksCosted = 8;

  explicit Evaluator(const PlanQuestion& question) : question_(&question) {}

  // Of the workload; 0: any number.
  int64_t requests() const {
    int64_t all = 0;
    for (const RequestGroup& group : question_->workload) {
      if (group.count == 0) return 0;
      all += group.count;
    }
    return all;
  }

  Result<ModelToPlan> model_in(const EngineFlags& flags) {
    const auto known = models_.find(flags.format);
    if (known != models_.end()) return known->second;
    Result<ModelToPlan> model = open_model_to_plan(question_->model, flags, machine_.device, {});
    models_.emplace(flags.format, model);
    return model;
  }

  const PlanQuestion* question_;
  PlanMachine machine_;
  PlanWishes wishes_;
  std::map<std::optional<Format>, Result<ModelToPlan>> models_;
};

class Search {
 public:
  Search(const PlanQuestion& question, Evaluator& evaluator)
      : question_(question), evaluator_(evaluator) {
    for (const RequestGroup& group : question.workload) {
      most_ = std::min(kBlockMost, most_ + (group.count > 0 ? group.count : kBlockMost));
      requests_ += group.count;
    }
    prompt_tokens_each_ = prompt_tokens_each(question.workload);
  }

  Result<FoundPlans> run() {
    for (const EngineFlags& flags : formats()) {
      base_ = flags;
      first_ = candidates_.size();
      done_.clear();
      if (base_.block) {
        try_block(*base_.block);
      } else {
        try_blocks();
      }
      try_targets();
      try_micro_batches();
    }
    first_ = 0;
    if (candidates_.empty()) {
      if (!first_error_.ok()) return first_error_;
      return invalid_argument("--micro-batch " + std::to_string(*question_.flags.micro_batch) +
                              " is more than there are sequences");
    }
    const CostedChoice* best = best_within_limit();
    if (best == nullptr) return too_slow(candidates_, question_.latency_seconds);
    FoundPlans found;
    SPILLWAY_ASSIGN_OR_RETURN(found.best, evaluator_.evaluate(best->flags, true));
    if (question_.frontier) found.frontier = frontier_of(candidates_);
    found.tried = tried_;
    return found;
  }

 private:
  // The flags with each format to be searched.
  std::vector<EngineFlags> formats() const {
    std::vector<EngineFlags> found = {question_.flags};
    if (!question_.search_formats) return found;
    for (std::optional<Format> EngineFlags::*format :
         {&EngineFlags::format, &EngineFlags::kv_format}) {
      if (question_.flags.*format) continue;
      const std::vector<EngineFlags> before = found;
      for (EngineFlags flags : before) {
        for (const Format searched : kSearchedFormats) {
          flags.*format = searched;
          found.push_back(flags);
        }
      }
    }
    return found;
  }

  // Tries every power of two to the last, since throughput may fall and rise again where a larger
  // block pushes weights out of memory; then sizes between the best one's neighbours.
  void try_blocks() {
    const int64_t most = most_;
    for (int64_t block = 1; block < most; block *= 2) {
      try_block(block);
      if (question_.frontier) try_block(std::min(most, block + (block + 1) / 2));
    }
    try_block(most);
    if (question_.latency_seconds > 0) try_up_to_limit(most);
    if (best_within_limit() == nullptr) return;
    for (double step = 0.25; step > 0.03; step /= 2) {
      const auto around = static_cast<double>(*best_within_limit()->flags.block);
      for (const double factor : {1.0, 1 - step, 1 + step}) {
        try_block(std::clamp<int64_t>(std::llround(around * factor), 1, most));
      }
    }
  }

  // The latency limit mostly lies between two tried blocks: searches for the largest block within
  // it.
  void try_up_to_limit(int64_t most) {
    const CostedChoice* best = best_within_limit();
    if (best == nullptr) return;
    int64_t low = *best->flags.block, high = std::min(most, 2 * low);
    while (high - low > 1 + low / 64) {
      const int64_t middle = low + (high - low) / 2;
      try_block(middle);
      const bool within =
          std::any_of(candidates_.begin() + static_cast<ptrdiff_t>(first_), candidates_.end(),
                      [&](const auto& c) { return c.flags.block == middle && within_limit(c); });
      (within ? low : high) = middle;
    }
  }

  // Tries targets of a sweep's prompt tokens where it is known how many requests come, so that some
  // begin while others decode. Sequences that end make room for so many prompt tokens a sweep:
  // of a full block of mean ones, its prompts' tokens over the sweeps that a sequence decodes. With
  // a lower target the block is never full, but has less to read. Then blocks are tried again,
  // since with a target another one may be best, each with the same part of its tokens.
  void try_targets() {
    const CostedChoice* before = best_within_limit();
    if (before == nullptr || base_.prefill_target || requests_ == 0) return;
    EngineFlags flags = before->flags;
    const double speed = before->prediction.tokens_per_second();
    double best = 0, best_speed = speed;
    for (const double part : kTargetParts) {
      flags.prefill_target = target_of(*flags.block, part);
      const Result<CostedChoice> choice = place(flags);
      if (!choice.ok() || choice->prediction.tokens_per_second() <= best_speed) continue;
      best = part;
      best_speed = choice->prediction.tokens_per_second();
    }
    if (best == 0 || best_speed <= speed * (1 + kTargetGains)) return;
    target_part_ = best;
    done_.clear();
    if (base_.block) {
      try_block(*base_.block);
    } else {
      try_blocks();
    }
    target_part_ = 0;
    for (const double part : kTargetParts) {
      flags = best_within_limit()->flags;
      flags.prefill_target = target_of(*flags.block, part);
      consider(flags);
    }
  }

  int64_t target_of(int64_t block, double part) const {
    return spillway::target_of(block, part, prompt_tokens_each_);
  }

  // Tries smaller micro-batches for the best plan so far only: they take no less memory and mostly
  // longer, but a machine may be faster at fewer rows.
  void try_micro_batches() {
    const CostedChoice* best = best_within_limit();
    if (best == nullptr || best->flags.micro_batch) return;
    EngineFlags flags = best->flags;
    for (int64_t size = 1; size < *flags.block; size *= 2) {
      flags.micro_batch = size;
      consider(flags);
    }
  }

  void try_block(int64_t block) {
    if (!done_.insert(block).second) return;
    EngineFlags flags = base_;
    flags.block = block;
    if (target_part_ > 0) flags.prefill_target = target_of(block, target_part_);
    if (flags.micro_batch && *flags.micro_batch > block) return;
    consider(flags);
    for (const bool weights_stream : {false, true}) {
      for (const KvReach kv : {KvReach::kDevice, KvReach::kHost, KvReach::kDisk}) {
        if (kv == KvReach::kHost && (!question_.hardware->link || flags.kv)) continue;
        if (weights_stream || kv != KvReach::kDevice) try_shares(flags, weights_stream, kv, false);
      }
    }
    if (!flags.activations) try_shares(flags, true, KvReach::kDisk, true);
  }

  // Tries the linear program's shares for a block, with or without streamed weights, with the KV
  // cache up to tier `kv`, and with or without activations off the device. The buffers of a probe
  // plan with all of these off the device are subtracted from the capacities first.
  void try_shares(EngineFlags flags, bool weights_stream, KvReach kv, bool activations_leave) {
    if (flags.weights && flags.kv) return;  // No open share
    EngineFlags away = flags;
    if (!away.weights) away.weights = weights_stream ? kAllOnDisk : kAllOnDevice;
    const bool attends = !flags.kv && kv == KvReach::kDisk && cpu_attends(flags);
    if (!flags.kv) {
      away.kv = kv == KvReach::kDevice ? kAllOnDevice
                : kv == KvReach::kHost ? kAllOnHost
                : attends              ? kSomeOnHost
                                       : kAllOnDisk;
    }
    if (activations_leave) away.activations = kAllOnDisk;
    Result<CostedChoice> probe = place(away);
    if (!probe.ok() && attends) {
      away.kv = kAllOnDisk;
      probe = place(away);
    }
    if (!probe.ok()) return;
    Result<EngineFlags> found =
        with_best_shares(flags, probe.value(), weights_stream, kv, activations_leave);
    if (!found.ok()) return;
    if (activations_leave && (*found->activations)[0] == 100) return;  // Tried without the rings
    // Staging rings are smaller when fewer bytes are streamed: with the rings of the found plan
    // more memory is free.
    Result<CostedChoice> closer = place(found.value());
    if (closer.ok() && weights_stream && !flags.weights) {
      const auto again =
          with_best_shares(flags, closer.value(), weights_stream, kv, activations_leave);
      if (again.ok() && (again->weights != found->weights || again->kv != found->kv)) {
        consider(again.value());
      }
    }
    if (closer.ok()) consider(std::move(closer).value());
  }

  // Sets the open shares by the linear program, within the capacity left by the buffers of `probe`.
  Result<EngineFlags> with_best_shares(EngineFlags flags, const CostedChoice& probe,
                                       bool weights_stream, KvReach kv,
                                       bool activations_leave) const {
    PlacementRoom room = room_of(probe, activations_leave);
    room.weights_stream = weights_stream;
    room.kv_leaves = kv != KvReach::kDevice;
    room.kv_to_disk = kv == KvReach::kDisk;
    SPILLWAY_ASSIGN_OR_RETURN(const MachineRates rates,
                              MachineRates::of(*question_.hardware, probe.costed));
    SPILLWAY_ASSIGN_OR_RETURN(const PlacementShares shares,
                              best_shares(probe.costed, rates, probe.sweeps, room));
    if (activations_leave) flags.activations = percent_of(shares.activations);
    if (!flags.kv) flags.kv = percent_of(shares.kv);
    if (!flags.weights) flags.weights = percent_of(shares.weights);
    return flags;
  }

  // Whether the CPU would attend to KV in host memory.
  bool cpu_attends(const EngineFlags& flags) const {
    const HardwareProfile& hardware = *question_.hardware;
    return flags.attention == "auto" ? host_attention_pays(hardware)
                                     : flags.attention == "host" && hardware.link;
  }

  PlacementRoom room_of(const CostedChoice& probe, bool activations_leave) const {
    const Plan& plan = *probe.plan;
    const auto left = [](uint64_t budget, uint64_t taken) {
      return budget - std::min(budget, taken);
    };
    PlacementRoom room;
    room.weights = plan.weights.device + plan.weights.host + plan.weights.disk;
    room.kv = probe.kv_bytes_wanted;
    const uint64_t host =
        left(plan.budget_bytes, plan.process_bytes + plan.placement.host_rings.sum() +
                                    plan.activations.host +
                                    (plan.discrete ? 0 : plan.activations.device));
    if (plan.discrete) {
      room.device =
          left(plan.device_budget_bytes,
               kDeviceProcessBytes + plan.placement.device_rings.sum() + plan.activations.device);
      room.host = host;
    } else {
      room.device = host;
    }
    if (activations_leave) {
      const ResidualRows rows = residual_rows(plan);
      room.activations = rows.sweep_bytes;
      room.activations_leave = true;
      // A tier with activations needs capacity for one micro-batch more than its share.
      room.device = left(room.device, rows.micro_batch_bytes);
      room.host = left(room.host, rows.micro_batch_bytes);
    }
    room.disk = static_cast<uint64_t>(question_.hardware->disk.free_bytes.value);
    if (!question_.flags.dummy_weights) room.disk += room.weights;  // Already on disk
    return room;
  }

  Result<CostedChoice> place(const EngineFlags& flags) {
    ++tried_;
    Result<CostedChoice> choice = evaluator_.evaluate(flags);
    if (!choice.ok() && first_error_.ok()) first_error_ = choice.status();
    return choice;
  }

  void consider(const EngineFlags& flags) {
    Result<CostedChoice> choice = place(flags);
    if (choice.ok()) consider(std::move(choice).value());
  }
  void consider(CostedChoice placed) { candidates_.push_back(filled(pinned(std::move(placed)))); }

  // The choice with its block reduced to the sequences that its cache holds: a larger block would
  // never be full.
  CostedChoice filled(CostedChoice choice) {
    if (question_.flags.block || choice.sequences >= std::min(*choice.flags.block, most_)) {
      return choice;
    }
    EngineFlags flags = choice.flags;
    flags.block = choice.sequences;
    if (flags.micro_batch && *flags.micro_batch > *flags.block) return choice;
    Result<CostedChoice> placed = place(flags);
    return placed.ok() ? std::move(placed).value() : std::move(choice);
  }

  // The choice placed again with its shares in whole per cents, as the flags will give them.
  CostedChoice pinned(CostedChoice choice) {
    EngineFlags flags = choice.flags;
    const Plan& plan = *choice.plan;
    // Without a flag the residual stream stays on the device, whatever the other shares.
    if (!flags.activations) flags.activations = kAllOnDevice;
    if (flags.weights && flags.kv) {
      choice.flags = std::move(flags);
      return choice;
    }
    if (!flags.weights) flags.weights = percent_of(plan.weights);
    if (!flags.kv) flags.kv = percent_of(plan.kv);
    Result<CostedChoice> placed = place(flags);
    // One more per cent of the weights on disk compensates for the rounding.
    while (!placed.ok() && !question_.flags.weights && (*flags.weights)[0] > 0) {
      --(*flags.weights)[0];
      ++(*flags.weights)[2];
      placed = place(flags);
    }
    return placed.ok() ? std::move(placed).value() : std::move(choice);
  }

  bool within_limit(const CostedChoice& choice) const {
    return question_.latency_seconds <= 0 || choice.latency_seconds <= question_.latency_seconds;
  }

  // The best candidate with the current formats; at the end, with any. Null: none is within the
  // limit.
  const CostedChoice* best_within_limit() const {
    const CostedChoice* best = nullptr;
    for (size_t i = first_; i < candidates_.size(); ++i) {
      const CostedChoice& choice = candidates_[i];
      if (within_limit(choice) && (best == nullptr || better(choice, *best))) best = &choice;
    }
    return best;
  }

  const PlanQuestion& question_;
  Evaluator& evaluator_;
  EngineFlags base_;                      // The question's flags, with the current formats
  std::vector<CostedChoice> candidates_;  // All that fit, their shares as whole per cents
  size_t first_ = 0;                      // First candidate with the current formats
  int64_t most_ = 0;                      // Largest block to try, in sequences
  int64_t requests_ = 0;                  // In the workload; 0: any number
  double prompt_tokens_each_ = 0;  // Prompt tokens of the workload for each that it generates
  double target_part_ = 0;         // Of the targets of blocks (target_of()); 0: no target
  std::set<int64_t> done_;
  Status first_error_;
  int64_t tried_ = 0;
};

}  // namespace

Result<PlanMachine> machine_of_profile(const HardwareProfile& hardware, const EngineFlags& flags) {
  PlanMachine machine;
  SPILLWAY_ASSIGN_OR_RETURN(machine.device, traits_of(hardware));
  machine.host_budget = host_budget(hardware, flags.host_memory_bytes);
  if (machine.device.discrete()) {
    if (flags.quantized_compute == "int8") return int8_is_for_cpus();
    machine.device_budget = device_budget(machine.device.memory, flags.device_memory_bytes);
  }
  machine.disk_free_bytes = static_cast<uint64_t>(hardware.disk.free_bytes.value);
  machine.host_attention_pays = host_attention_pays(hardware);
  return machine;
}

Result<CostedChoice> evaluate_plan(const PlanQuestion& question, const EngineFlags& flags) {
  SPILLWAY_ASSIGN_OR_RETURN(Evaluator evaluator, Evaluator::open(question));
  return evaluator.evaluate(flags, true);
}

CostedChoice with_target_for_stream(const PlanQuestion& question, const CostedChoice& choice) {
  constexpr int64_t kBlocks = 8;  // What the block's filling and emptying take of it is little.
  PlanQuestion stream = question;
  const auto groups = static_cast<int64_t>(question.workload.size());
  for (RequestGroup& group : stream.workload) {
    group.count = std::max<int64_t>(1, kBlocks * choice.sequences / groups);
  }
  const auto speed = [&](const EngineFlags& flags) {
    const Result<CostedChoice> costed = evaluate_plan(stream, flags);
    return costed.ok() ? costed->prediction.tokens_per_second() : 0;
  };
  EngineFlags flags = choice.flags;
  double best = (1 + kTargetGains) * speed(flags);
  CostedChoice found = choice;
  for (const double part : kTargetParts) {
    flags.prefill_target = target_of(choice.sequences, part, prompt_tokens_each(question.workload));
    const double with = speed(flags);
    if (with <= best) continue;
    Result<CostedChoice> costed = evaluate_plan(question, flags);
    const bool within = costed.ok() && (question.latency_seconds <= 0 ||
                                        costed->latency_seconds <= question.latency_seconds);
    if (!within) continue;
    best = with;
    found = std::move(costed).value();
  }
  return found;
}

Result<FoundPlans> find_plans(const PlanQuestion& question) {
  SPILLWAY_ASSIGN_OR_RETURN(Evaluator evaluator, Evaluator::open(question));
  return Search(question, evaluator).run();
}

Result<CostedChoice> find_plan(const PlanQuestion& question, int64_t* tried) {
  SPILLWAY_ASSIGN_OR_RETURN(FoundPlans found, find_plans(question));
  if (tried != nullptr) *tried = found.tried;
  return std::move(found.best);
}

}  // namespace spillway
