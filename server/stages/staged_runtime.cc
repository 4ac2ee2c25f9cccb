#include "server/stages/staged_runtime.h"

#include <algorithm>
#include <utility>

#include "kernels/base/units.h"
#include "offload/weight_placement.h"
#include "scheduler/planning/make_plan.h"
#include "scheduler/planning/stage_plans.h"
#include "scheduler/stages/stage_messages.h"
#include "scheduler/stages/stage_ring.h"
#include "scheduler/stages/stage_worker.h"
#include "server/portable_identity.h"
#include "server/stages/stage_notes.h"

namespace spillway {

namespace {

// A discrete device computes as fast as so many threads of a CPU, roughly.
constexpr double kDeviceThreads = 100;

// What a rank says of itself when it has opened the model.
struct Opened {
  std::string identity;
  double speed = 1;
  uint64_t memory_bytes = 0;
};

// What rank 0 tells another one to plan.
struct Task {
  LayerRange layers;
  int64_t block = 0, prefill_tokens = 0;
  int64_t prompt_tokens = 0, new_tokens = 0;  // PlanWishes
  int64_t sweep_tokens = 0;                   // Of rank 0's sweeps, at most
  bool streams = false;                       // PlanWishes
};

Opened describe(const OpenedModel& opened, const std::string& model) {
  Opened self;
  self.identity =
      portable_identity(opened.model.source, model) + " " + opened.model.table->formats_text();
  const PlanMachine machine = machine_of(opened, nullptr);
  const bool discrete = machine.device.discrete();
  self.speed = discrete ? kDeviceThreads : static_cast<double>(opened.flags.threads);
  self.memory_bytes = machine.host_budget.bytes + (discrete ? machine.device_budget.bytes : 0);
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
    if (WeightPlacer(table, ranges[i]).weight_bytes() > ranks[i].memory_bytes) return true;
  }
  return false;
}

// Of several ranks on one host each has its share of the disk.
PlanMachine stage_machine(const OpenedModel& opened, const Roll& roll, int rank) {
  PlanMachine machine = machine_of(opened, nullptr);
  machine.disk_free_bytes /= static_cast<uint64_t>(roll.on_host_of(rank));
  return machine;
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
    if (!reader.ok()) return corruption(names[i] + " sent a damaged note");
    if (other.identity != ranks[0].identity) {
      return invalid_argument(names[i] + " has another model, " + other.identity +
                              ", than rank 0, " + ranks[0].identity +
                              "; copy the same files to all hosts");
    }
    ranks.push_back(std::move(other));
  }
  return ranks;
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

Result<std::unique_ptr<Runtime>> open_stages(StageRank& rank, const std::string& model,
                                             EngineFlags flags, RuntimeOptions options) {
  RankMail& mail = *rank.mail();
  const std::vector<std::string> names = names_of(rank);
  const std::string warning = binding_warning(rank.roll(), flags);
  if (!warning.empty() && options.say) options.say(warning);
  take_share(rank.roll(), 0, &flags);
  SPILLWAY_ASSIGN_OR_RETURN(OpenedModel opened, open_model(model, flags, options));
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<Opened> ranks,
                            gather_opened(mail, names, describe(opened, model)));
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<LayerRange> ranges,
                            layers_of(*opened.model.table, flags, ranks));
  options.wishes.layers = ranges[0];
  options.wishes.streams = some_stream(*opened.model.table, ranges, ranks);
  SPILLWAY_ASSIGN_OR_RETURN(
      Plan plan,
      make_plan(opened.model, stage_machine(opened, rank.roll(), 0), flags, options.wishes));
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
  options.others = [&]() -> Result<std::unique_ptr<OtherRanks>> {
    SPILLWAY_ASSIGN_OR_RETURN(const auto notes, gather_notes(mail, names));
    std::vector<KvCacheOptions> caches;
    for (size_t i = 1; i < notes.size(); ++i) {
      ByteReader reader(notes[i]);
      const auto sizes = reader.get<CacheSizes>();
      const std::string line = reader.get_text();
      if (!reader.ok()) return corruption(names[i] + " sent a damaged note");
      if (options.say) {
        options.say(names[i] + ": " + layers_text(ranges[i], shape) + ": " + line);
      }
      KvCacheOptions& cache = caches.emplace_back();
      cache.layout = kv_layout(shape, kv_format);
      cache.layers = ranges[i];
      cache.memory_bytes = sizes.memory_bytes;
      cache.host_bytes = sizes.host_bytes;
      cache.disk_bytes = sizes.disk_bytes;
      cache.staging_bytes = sizes.staging_bytes;
      cache.device_staging_bytes = sizes.device_staging_bytes;
      cache.window = shape.sliding_window;
      cache.windowed = shape.sliding_layers;
    }
    SPILLWAY_ASSIGN_OR_RETURN(auto ring, stage_ring(mail, shape.hidden, std::move(caches)));
    rank.hand_over();
    if (options.say) options.say(names[0] + ": " + layers_text(ranges[0], shape));
    return ring;
  };
  return open_runtime(std::move(opened), std::move(plan), options);
}

Status follow_stages(const StageRank& rank, const std::string& model, EngineFlags flags) {
  RankMail& mail = *rank.mail();
  take_share(rank.roll(), mail.rank(), &flags);
  if (!flags.trace.empty()) flags.trace += ".rank" + std::to_string(mail.rank());
  RuntimeOptions options;
  options.start_scheduler = false;
  // Says the error to rank 0, which waits for a note.
  const auto told = [&](const Status& status) {
    post_note(mail, 0, status);
    return status;
  };
  Result<OpenedModel> opened = open_model(model, flags, options);
  if (!opened.ok()) return told(opened.status());
  const Opened self = describe(opened.value(), model);
  ByteWriter note;
  note.add_text(self.identity);
  note.add(self.speed);
  note.add(self.memory_bytes);
  post_note(mail, 0, {}, std::move(note));

  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<std::byte> told_to_do, receive_note(mail));
  const auto task = ByteReader(told_to_do).get<Task>();
  flags.block = task.block;
  flags.prefill_tokens = task.prefill_tokens;
  options.wishes.layers = task.layers;
  options.wishes.prompt_tokens = task.prompt_tokens;
  options.wishes.new_tokens = task.new_tokens;
  options.wishes.streams = task.streams;
  Result<Plan> plan =
      make_plan(opened->model, stage_machine(opened.value(), rank.roll(), mail.rank()), flags,
                options.wishes);
  if (!plan.ok()) return told(plan.status());
  if (plan->engine.sweep_tokens_max != task.sweep_tokens) {
    return told(invalid_argument("it was given other flags: its sweeps have up to " +
                                 std::to_string(plan->engine.sweep_tokens_max) +
                                 " tokens, those of rank 0 " + std::to_string(task.sweep_tokens)));
  }
  post_note(mail, 0, {});

  SPILLWAY_RETURN_IF_ERROR(receive_note(mail).status());  // All plans fit.
  const auto runtime = open_runtime(std::move(opened).value(), std::move(plan).value(), options);
  if (!runtime.ok()) return told(runtime.status());
  const KvCache& kv = runtime.value()->engine().kv();
  ByteWriter ready;
  ready.add(CacheSizes{kv.memory_bytes(), kv.host_bytes(), kv.disk_bytes(),
                       kv.options().staging_bytes, kv.options().device_staging_bytes});
  ready.add_text(plan_line(*runtime.value()));
  post_note(mail, 0, {}, std::move(ready));
  return run_stage(mail, runtime.value()->engine());
}

}  // namespace spillway
