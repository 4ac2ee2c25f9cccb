#include "server/stages/staged_runtime.h"

#include <algorithm>
#include <utility>

#include "kernels/base/units.h"
#include "offload/rank_memory.h"
#include "scheduler/planning/make_plan.h"
#include "scheduler/planning/stage_plans.h"
#include "scheduler/stages/stage_messages.h"
#include "scheduler/stages/stage_ring.h"
#include "scheduler/stages/stage_worker.h"
#include "scheduler/stages/stages_of_ranks.h"
#include "server/portable_identity.h"
#include "server/ranked_runtime.h"
#include "server/stages/stage_notes.h"
#include "server/stages/stage_search.h"

namespace spillway {

namespace {

// A discrete device computes as fast as so many threads of a CPU, roughly.
constexpr double kDeviceThreads = 100;

// What a rank says of itself when it has opened the model.
struct Opened {
  std::string identity;
  double speed = 1;
  uint64_t memory_bytes = 0;
  int64_t ranks = 1;  // That share its layers
  StageMachineSeen machine;
};

// What rank 0 tells another one to plan.
struct Task {
  LayerRange layers;
  int64_t block = 0, prefill_tokens = 0;
  int64_t prompt_tokens = 0, new_tokens = 0;  // PlanWishes
  int64_t sweep_tokens = 0;                   // Of rank 0's sweeps, at most
  bool streams = false;                       // PlanWishes
};

// Of several stages on one host each has its share of the disk.
uint64_t disk_parts(const StageRank& rank) {
  return static_cast<uint64_t>(rank.roll().on_host_of(rank.mail()->rank()));
}

Opened describe(const std::vector<OpenedModel>& opened, const std::string& model,
                const EngineFlags& flags, const StageRank& rank) {
  Opened self;
  const RankSelf& process = rank.roll().ranks[static_cast<size_t>(rank.mail()->rank())];
  self.machine = see_stage_machine(opened[0], flags, process, disk_parts(rank));
  const ModelToPlan& first = opened[0].model;
  self.identity = portable_identity(first.source, model) + " " + first.table->formats_text();
  self.speed = 0;
  self.ranks = static_cast<int64_t>(opened.size());
  for (const OpenedModel& one : opened) {
    const PlanMachine machine = machine_of(one, nullptr);
    const bool discrete = machine.device.discrete();
    self.speed += discrete ? kDeviceThreads : static_cast<double>(one.flags.threads);
    if (one.flags.rank == 0) self.memory_bytes = machine.host_budget.bytes;  // Of all ranks
    if (discrete) self.memory_bytes += machine.device_budget.bytes;
  }
  return self;
}

Result<std::vector<LayerRange>> layers_of(const ModelFileTable& table, const EngineFlags& flags,
                                          const std::vector<Opened>& ranks) {
  std::vector<StageMachine> machines;
  for (const Opened& rank : ranks) {
    machines.push_back({rank.speed, memory_for_layers(rank.memory_bytes), 0, 0});
  }
  return cut_layers(table, flags, machines);
}

// Whether some rank's weights do not fit its memory.
bool some_stream(const ModelFileTable& table, const std::vector<LayerRange>& ranges,
                 const std::vector<Opened>& ranks) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (weight_bytes_of_ranks(table, ranges[i]) > ranks[i].memory_bytes) return true;
  }
  return false;
}

std::string layers_text(const LayerRange& range, const ModelShape& shape) {
  return "layers " + std::to_string(range.first) + " to " + std::to_string(range.end() - 1) +
         (range.has_head(shape) ? " and the head" : "");
}

// The other ranks' caches as they opened them, of which rank 0 keeps the books.
struct CacheSizes {
  uint64_t memory_bytes = 0, host_bytes = 0, disk_bytes = 0;
  uint64_t staging_bytes = 0, device_staging_bytes = 0;
};

CacheSizes sizes_of(const KvCacheOptions& cache) {
  return {cache.memory_bytes, cache.host_bytes, cache.disk_bytes, cache.staging_bytes,
          cache.device_staging_bytes};
}

KvCacheOptions cache_of(const CacheSizes& sizes, const ModelShape& shape, Format kv_format,
                        const LayerRange& layers) {
  KvCacheOptions cache;
  cache.layout = kv_layout(shape, kv_format);
  cache.layers = layers;
  cache.memory_bytes = sizes.memory_bytes;
  cache.host_bytes = sizes.host_bytes;
  cache.disk_bytes = sizes.disk_bytes;
  cache.staging_bytes = sizes.staging_bytes;
  cache.device_staging_bytes = sizes.device_staging_bytes;
  cache.window = shape.sliding_window;
  cache.windowed = shape.sliding_layers;
  return cache;
}

std::vector<std::string> names_of(const StageRank& rank) {
  std::vector<std::string> names;
  for (int i = 0; i < rank.mail()->size(); ++i) names.push_back(rank.roll().name(i));
  return names;
}

Result<std::vector<Opened>> gather_opened(RankMail& mail, const std::vector<std::string>& names,
                                          Opened self) {
  SPILLWAY_ASSIGN_OR_RETURN(const auto notes, gather_notes(mail, names));
  std::vector<Opened> ranks = {std::move(self)};
  for (size_t i = 1; i < notes.size(); ++i) {
    ByteReader reader(notes[i]);
    Opened other;
    other.identity = reader.get_text();
    other.speed = reader.get<double>();
    other.memory_bytes = reader.get<uint64_t>();
    other.ranks = reader.get<int64_t>();
    other.machine = read_stage_machine(&reader);
    if (!reader.ok()) return corruption(names[i] + " sent a damaged note");
    if (other.identity != ranks[0].identity) {
      return invalid_argument(names[i] + " has another model, " + other.identity +
                              ", than rank 0, " + ranks[0].identity +
                              "; copy the same files to all hosts");
    }
    if (other.ranks != ranks[0].ranks) {
      return invalid_argument(names[i] + " has " + std::to_string(other.ranks) +
                              " GPUs for its layers, rank 0 has " + std::to_string(ranks[0].ranks) +
                              "; start as many stages on each host, or name as many GPUs for each");
    }
    ranks.push_back(std::move(other));
  }
  return ranks;
}

// Has the plans go by what a search finds. None: it finds nothing, which is said.
std::optional<StagePrediction> search(const std::vector<Opened>& ranks, const StageRank& rank,
                                      StageQuestion question, const RuntimeOptions& options,
                                      RanksHere* here) {
  std::vector<StageMachineSeen> machines;
  for (const Opened& one : ranks) machines.push_back(one.machine);
  question.machines = machines;
  question.one_host = rank.roll().on_host_of(0) == static_cast<int64_t>(ranks.size());
  const Result<StageAnswer> answer = search_stages(question, names_of(rank));
  if (!answer.ok()) {
    // Infeasibility is reported by the default heuristic, with its own message.
    if (options.say && answer.status().code() != Code::kInfeasible) {
      const EngineFlags& flags = question.first->flags;
      const bool named = flags.block && flags.prefill_tokens;
      options.say((named ? "No prediction: " : "Placed by the default heuristic: ") +
                  std::string(answer.status().message()));
    }
    return std::nullopt;
  }
  if (options.say) options.say(answer->line);
  const Plan& plan = answer->plan.plans[0];
  here->go_by(plan.block_sequences(), plan.prefill_tokens());
  return answer->plan.prediction;
}

}  // namespace

StageRank::~StageRank() {
  if (mail_->rank() > 0 || handed_over_) return;
  for (int rank = 1; rank < mail_->size(); ++rank) mail_->post(rank, end_message());
}

Result<std::unique_ptr<StageRank>> join_stages(std::shared_ptr<RankMail> mail,
                                               const EngineFlags& flags) {
  SPILLWAY_ASSIGN_OR_RETURN(Roll roll, call_roll(*mail, rank_self(flags), flags.stages));
  return std::make_unique<StageRank>(std::move(mail), std::move(roll));
}

Result<StartedStages> open_stages(StageRank& rank, const std::string& model, EngineFlags flags,
                                  RuntimeOptions options,
                                  const std::vector<RequestGroup>& workload) {
  RankMail& mail = *rank.mail();
  const std::vector<std::string> names = names_of(rank);
  const std::string warning = binding_warning(rank.roll(), flags);
  if (!warning.empty() && options.say) options.say(warning);
  const std::string crowded = crowding_warning(rank.roll(), flags);
  if (!crowded.empty() && options.say) options.say(crowded);
  SPILLWAY_RETURN_IF_ERROR(take_share(rank.roll(), 0, &flags));
  SPILLWAY_ASSIGN_OR_RETURN(RanksHere here, RanksHere::open(model, flags, options));
  SPILLWAY_ASSIGN_OR_RETURN(
      const std::vector<Opened> ranks,
      gather_opened(mail, names, describe(here.opened(), model, flags, rank)));
  const ModelFileTable& table = *here.opened()[0].model.table;
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<LayerRange> ranges, layers_of(table, flags, ranks));
  options.wishes.layers = ranges[0];
  options.wishes.streams = some_stream(table, ranges, ranks);
  StartedStages started;
  if (!workload.empty()) {
    StageQuestion question{&here.opened()[0], {}, ranges, false, options.wishes, workload};
    started.predicted = search(ranks, rank, question, options, &here);
  }
  const auto& profile = ranks[0].machine.hardware;
  const Status planned =
      here.make_plans(options.wishes, {}, profile ? &*profile : nullptr, disk_parts(rank));
  if (!planned.ok()) return planned.at(names[0]);
  const Plan& plan = here.plans()[0];
  for (int i = 1; i < mail.size(); ++i) {
    ByteWriter task;
    task.add(Task{ranges[static_cast<size_t>(i)], plan.block_sequences(), plan.prefill_tokens(),
                  options.wishes.prompt_tokens, options.wishes.new_tokens,
                  plan.engine.sweep_tokens_max, options.wishes.streams});
    post_note(mail, i, {}, std::move(task));
  }
  SPILLWAY_RETURN_IF_ERROR(gather_notes(mail, names).status());  // Their plans
  for (int i = 1; i < mail.size(); ++i) post_note(mail, i, {});
  const ModelShape shape = plan.shape;
  const Format kv_format = plan.kv_format();
  const auto say = [&](size_t stage, const std::string& line) {
    if (!options.say) return;
    options.say(names[stage] + ": " + layers_text(ranges[stage], shape) +
                (line.empty() ? "" : ": " + line));
  };
  SPILLWAY_RETURN_IF_ERROR(here.start_others());
  options.others = [&]() -> Result<std::unique_ptr<OtherRanks>> {
    SPILLWAY_ASSIGN_OR_RETURN(RanksHere::Others beside, here.others());
    SPILLWAY_ASSIGN_OR_RETURN(const auto notes, gather_notes(mail, names));
    std::vector<KvCacheOptions> caches;
    for (size_t i = 1; i < notes.size(); ++i) {
      ByteReader reader(notes[i]);
      for (int64_t of = 0; of < shape.ranks; ++of) {
        const auto sizes = reader.get<CacheSizes>();
        const std::string line = reader.get_text();
        if (!reader.ok()) return corruption(names[i] + " sent a damaged note");
        say(i, line);
        caches.push_back(cache_of(sizes, shape, kv_format, ranges[i]));
      }
    }
    SPILLWAY_ASSIGN_OR_RETURN(
        std::unique_ptr<OtherRanks> ring,
        stage_ring(mail, shape.hidden, caches, static_cast<int>(shape.ranks)));
    rank.hand_over();
    say(0, "");
    if (beside.ranks == nullptr) return ring;
    for (const std::string& line : beside.plan_lines) say(0, line);
    return stages_of_ranks(std::move(ring), std::move(beside.ranks));
  };
  SPILLWAY_ASSIGN_OR_RETURN(started.runtime, here.open_first(options));
  return started;
}

Status follow_stages(const StageRank& rank, const std::string& model, EngineFlags flags) {
  RankMail& mail = *rank.mail();
  if (!flags.trace.empty()) flags.trace += ".rank" + std::to_string(mail.rank());
  RuntimeOptions options;
  options.start_scheduler = false;
  // Says the error to rank 0, which waits for a note.
  const auto told = [&](const Status& status) {
    post_note(mail, 0, status);
    return status;
  };
  const Status shared = take_share(rank.roll(), mail.rank(), &flags);
  if (!shared.ok()) return told(shared);
  Result<RanksHere> opened = RanksHere::open(model, flags, options);
  if (!opened.ok()) return told(opened.status());
  RanksHere& here = opened.value();
  const Opened self = describe(here.opened(), model, flags, rank);
  ByteWriter note;
  note.add_text(self.identity);
  note.add(self.speed);
  note.add(self.memory_bytes);
  note.add(self.ranks);
  write(self.machine, &note);
  post_note(mail, 0, {}, std::move(note));

  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<std::byte> told_to_do, receive_note(mail));
  const auto task = ByteReader(told_to_do).get<Task>();
  here.go_by(task.block, task.prefill_tokens);
  options.wishes.layers = task.layers;
  options.wishes.prompt_tokens = task.prompt_tokens;
  options.wishes.new_tokens = task.new_tokens;
  options.wishes.streams = task.streams;
  const auto& profile = self.machine.hardware;
  const Status planned =
      here.make_plans(options.wishes, {}, profile ? &*profile : nullptr, disk_parts(rank));
  if (!planned.ok()) return told(planned);
  const int64_t sweep_tokens = here.plans()[0].engine.sweep_tokens_max;
  if (sweep_tokens != task.sweep_tokens) {
    return told(invalid_argument("it was given other flags: its sweeps have up to " +
                                 std::to_string(sweep_tokens) + " tokens, those of rank 0 " +
                                 std::to_string(task.sweep_tokens)));
  }
  post_note(mail, 0, {});

  SPILLWAY_RETURN_IF_ERROR(receive_note(mail).status());  // All plans fit.
  const Status started = here.start_others();
  if (!started.ok()) return told(started);
  const auto runtime = here.open_first(options);
  if (!runtime.ok()) return told(runtime.status());
  Result<RanksHere::Others> others = here.others();
  if (!others.ok()) return told(others.status());
  const KvCache& kv = runtime.value()->engine().kv();
  KvCacheOptions own = kv.options();
  own.memory_bytes = kv.memory_bytes();
  own.host_bytes = kv.host_bytes();
  own.disk_bytes = kv.disk_bytes();
  ByteWriter ready;
  ready.add(sizes_of(own));
  ready.add_text(plan_line(*runtime.value()));
  for (size_t i = 0; i < others->caches.size(); ++i) {
    ready.add(sizes_of(others->caches[i]));
    ready.add_text(others->plan_lines[i]);
  }
  post_note(mail, 0, {}, std::move(ready));
  return run_stage(mail, runtime.value()->engine(), others->ranks.get());
}

}  // namespace spillway
