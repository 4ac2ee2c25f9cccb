// Opens MODEL, and a Runtime of it: allocates and loads what the plan says.
#include <algorithm>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "offload/io/io.h"
#include "offload/io/spill_file.h"
#include "policy/cost_model.h"
#include "scheduler/planning/hardware_cache.h"
#include "scheduler/planning/machine.h"
#include "scheduler/planning/make_plan.h"
#include "scheduler/planning/memory_budget.h"
#include "server/ranked_runtime.h"
#include "server/runtime_state.h"

namespace spillway {

namespace {

// Shows loading as a share of the whole, in steps of 10 %.
class LoadPrinter {
 public:
  LoadPrinter(const RuntimeOptions& options, std::string what)
      : say_(options.say), what_(std::move(what)) {}
  void operator()(uint64_t done, uint64_t total) {
    const int tenth = total == 0 ? 10 : static_cast<int>(done * 10 / total);
    if (tenth <= last_ || !say_ || total < (uint64_t{1} << 30)) return;
    last_ = tenth;
    say_(what_ + " " + std::to_string(tenth * 10) + " % of " + format_bytes(total));
  }

 private:
  std::function<void(const std::string&)> say_;
  std::string what_;
  int last_ = 0;
};

// Shows packing in the same way.
class ConvertPrinter {
 public:
  explicit ConvertPrinter(const RuntimeOptions& options)
      : printer_(std::make_shared<LoadPrinter>(options, "Converting:")) {}
  bool operator()(uint64_t done, uint64_t total) {
    (*printer_)(done, total);
    return true;
  }

 private:
  std::shared_ptr<LoadPrinter> printer_;  // std::function copies; all copies must share one count.
};

// The kernel's names for an open file, or the parts of a striped one, that has no name of its own
// any more.
std::vector<std::string> proc_names(const File& file) {
  const auto name = [](int fd) { return "/proc/self/fd/" + std::to_string(fd); };
  if (!file.striped()) return {name(file.fd())};
  std::vector<std::string> names;
  for (const File& part : file.parts()) names.push_back(name(part.fd()));
  return names;
}

// A model whose tokenizer cannot be used still takes token ids.
void load_tokenizer(const RuntimeOptions& options, OpenedModel* opened) {
  const ModelFileTable& table = *opened->model.table;
  const ModelShape& shape = table.shape;
  TokenizerDefaults defaults;
  defaults.bos = shape.bos_token;
  defaults.eos = shape.eos_tokens.empty() ? -1 : shape.eos_tokens.front();
  defaults.pad = shape.pad_token;
  Result<Tokenizer> loaded = Tokenizer::load(table.files, defaults);
  if (loaded.status().code() == Code::kNotFound) return;
  if (loaded.ok()) {
    opened->tokenizer = std::make_unique<Tokenizer>(std::move(loaded).value());
    return;
  }
  opened->tokenizer_error = loaded.status().message();
  if (options.say) {
    options.say("warning: prompts must be token ids, this model's tokenizer cannot be used: " +
                opened->tokenizer_error);
  }
}

// Allocates and loads the parts of a Runtime in their order.
class Opener {
 public:
  Opener(const RuntimeOptions& options, Runtime::State& state)
      : options_(options), flags_(state.opened.flags), model_(state.opened.model), state_(state) {}

  Status open() {
    limit_memory();
    engine_ = plan().engine;
    engine_.log = options_.log;
    engine_.trace = state_.opened.trace.get();
    engine_.observe = options_.observe;
    engine_.ranks = options_.ranks.get();
    SPILLWAY_RETURN_IF_ERROR(open_disk());
    const double start = steady_seconds();
    SPILLWAY_RETURN_IF_ERROR(load());
    plan().load_seconds = steady_seconds() - start;
    return open_engine();
  }

 private:
  Plan& plan() { return state_.plan; }
  Device& device() { return *state_.opened.device; }
  void say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }

  void limit_memory() {
    if (!plan().discrete) return;
    const MemoryBudget budget{plan().device_budget_bytes,
                              plan().asked.device_memory_bytes.has_value()};
    plan().device_limit_bytes = device_limit(device(), budget);
    device().limit_memory(plan().device_limit_bytes);
  }

  // As many bytes, or 0 where there can be no scratch files, which nobody has asked for.
  uint64_t aside_in_scratch(uint64_t bytes) {
    const auto directories = scratch_directories(flags_.disk_dirs);
    const Status opened = directories.empty()
                              ? Status(Code::kNotFound, "there is no home directory")
                              : SpillDirectory::open(directories).status();
    if (opened.ok()) return bytes;
    say("Each sequence reserves the cache that it may need at most, since none can be set aside: " +
        std::string(opened.message()) + "; give --disk-dir");
    return 0;
  }

  // Data on disk needs transfers; data that is not in a model file needs scratch files.
  Status open_disk() {
    Plan& plan = this->plan();
    uint64_t& aside = engine_.kv_aside_bytes;
    if (aside > 0) aside = aside_in_scratch(aside);
    if (plan.weights.disk + plan.kv.disk + plan.activations.disk + aside == 0) return {};
    SPILLWAY_ASSIGN_OR_RETURN(state_.io, open_io(IoOptions()));
    if (state_.io->name() != "io_uring") {
      say("The kernel gives no io_uring here; the disk is read and written by threads, which cost "
          "more of the processor.");
    }
    state_.transfers = std::make_unique<TransferQueue>(*state_.io, state_.opened.trace.get());
    const uint64_t dummy = model_.dummy() ? plan.weights.disk : 0;
    if (dummy + plan.kv.disk + plan.activations.disk + aside == 0) return {};
    plan.disk_dirs = scratch_directories(flags_.disk_dirs);
    if (plan.disk_dirs.empty()) {
      return invalid_argument("there is no home directory for scratch files; give --disk-dir");
    }
    SPILLWAY_ASSIGN_OR_RETURN(const SpillDirectory scratch, SpillDirectory::open(plan.disk_dirs));
    const auto create = [&](uint64_t bytes, File* file) -> Status {
      if (bytes == 0) return {};
      SPILLWAY_ASSIGN_OR_RETURN(*file, scratch.create(bytes));
      return {};
    };
    SPILLWAY_RETURN_IF_ERROR(create(dummy, &dummy_file_));
    if (plan.kv.disk + aside > 0) {
      SPILLWAY_ASSIGN_OR_RETURN(files_.kv, scratch.create(plan.kv.disk, aside));
    }
    if (plan.kv.disk > 0) plan.kv_files = proc_names(files_.kv);
    return create(plan.activations.disk, &files_.activations);
  }

  Status load() {
    Plan& plan = this->plan();
    WeightStoreOptions options;
    options.layers = plan.engine.layers;
    options.placement = plan.placement.weights;
    options.positions_max = flags_.max_model_len.value_or(0);
    options.ring_bytes = plan.placement.host_rings.weights;
    options.device_ring_bytes = plan.placement.device_rings.weights;
    options.prefetch = engine_.overlap;
    options.verify = flags_.verify == "every"   ? VerifyReads::kEvery
                     : flags_.verify == "first" ? VerifyReads::kFirst
                                                : VerifyReads::kSample;
    options.transfers = state_.transfers.get();
    options.progress =
        LoadPrinter(options_, model_.dummy() ? "Making weights:" : "Loading weights:");
    if (model_.slabs) {
      if (plan.weights.disk > 0) plan.weights_files = {model_.slabs->largest_file()};
      SPILLWAY_ASSIGN_OR_RETURN(state_.weights, WeightStore::load(device(), model_.slabs, options));
    } else if (model_.file) {
      if (plan.weights.disk > 0) plan.weights_files = {model_.file->path()};
      SPILLWAY_ASSIGN_OR_RETURN(state_.weights, WeightStore::load(device(), *model_.file, options));
    } else {
      say("Making random weights of " + plan.shape.name + " in " +
          std::string(format_name(plan.format)));
      if (plan.weights.disk > 0) plan.weights_files = proc_names(dummy_file_);
      options.scratch = std::move(dummy_file_);
      SPILLWAY_ASSIGN_OR_RETURN(
          state_.weights,
          WeightStore::dummy(device(), plan.shape, plan.format, flags_.seed, std::move(options)));
    }
    if (state_.weights->repacked()) {
      say("The file was packed for another kind of machine; its weights were repacked while "
          "loading. Convert again to load faster.");
    }
    return {};
  }

  Status open_engine() {
    Plan& plan = this->plan();
    files_.transfers = state_.transfers.get();
    if (engine_.host_attention) {
      SPILLWAY_ASSIGN_OR_RETURN(state_.host, open_cpu_device(static_cast<int>(flags_.threads)));
      state_.host->set_trace(state_.opened.trace.get());
      engine_.host = state_.host.get();
    }
    SPILLWAY_ASSIGN_OR_RETURN(state_.engine,
                              Engine::open(device(), *state_.weights, engine_, std::move(files_)));
    plan.sequences_at_once =
        std::min(plan.block_sequences(),
                 state_.engine->kv().sequences_at_once(plan.longest_positions, plan.longest_budget,
                                                       plan.longest_chunks));
    if (options_.others) {
      SPILLWAY_ASSIGN_OR_RETURN(state_.others, options_.others());
    }
    if (!options_.start_scheduler) return {};
    say_of_drafts();
    SchedulerOptions scheduling = plan.scheduling;
    if (const Tokenizer* tokenizer = state_.opened.tokenizer.get()) {
      scheduling.sampling_vocabulary = static_cast<int64_t>(tokenizer->vocabulary());
    }
    state_.scheduler = start_scheduler(std::move(state_.engine), scheduling,
                                       options_.bound ? options_.bound(plan) : SweepBound(),
                                       std::move(state_.others));
    return {};
  }

  void say_of_drafts() const {
    const Plan& plan = state_.plan;
    if (plan.scheduling.draft_tokens == 0) return;
    if (plan.shape.layers_with_window() > 0) {
      say("--draft " + flags_.draft +
          " does nothing here: the model has sliding windows, whose rows drafts would replace");
    } else if (plan.kv_rule().kind != KvRuleKind::kFull) {
      say("--draft " + flags_.draft + " does nothing for sequences of which --kv-rule " +
          std::string(kv_rule_name(plan.kv_rule().kind)) +
          " drops rows: a draft that proves wrong could not bring them back");
    }
  }

  const RuntimeOptions& options_;
  const EngineFlags& flags_;
  const ModelToPlan& model_;
  Runtime::State& state_;
  EngineOptions engine_;  // The plan's, with pointers
  File dummy_file_;
  EngineScratch files_;
};

// Says which of several folders leaves scratch files little room: each takes an equal share.
void say_least_room(const std::vector<std::string>& folders, const RuntimeOptions& options) {
  if (folders.size() < 2 || !options.say) return;
  const std::string* fullest = nullptr;
  uint64_t least = UINT64_MAX, most = 0;
  for (const std::string& folder : folders) {
    const Result<uint64_t> free = free_disk_bytes(folder);
    if (!free.ok()) return;  // Its use is the error that says so.
    if (free.value() < least) fullest = &folder;
    least = std::min(least, free.value());
    most = std::max(most, free.value());
  }
  if (least > most / 2) return;
  options.say("Scratch files take an equal share of each folder, and " + *fullest + " has " +
              format_bytes(least) + " free, another " + format_bytes(most) + ".");
}

// The plan of the default heuristic.
Result<Plan> default_plan(const OpenedModel& opened, const RuntimeOptions& options) {
  // The profile matters for one setting alone.
  std::optional<HardwareProfile> profile;
  if (opened.device->discrete() && opened.flags.attention == "auto") {
    auto found = cached_profile(*opened.device, scratch_directories(opened.flags.disk_dirs));
    if (found.ok()) {
      profile = std::move(found).value();
    } else if (found.status().code() != Code::kNotFound && options.say) {
      options.say("warning: attention runs on the device: " +
                  std::string(found.status().message()));
    }
  }
  return make_plan(opened.model, machine_of(opened, profile ? &*profile : nullptr), opened.flags,
                   options.wishes);
}

}  // namespace

Result<OpenedModel> open_model(const std::string& model, const EngineFlags& flags,
                               const RuntimeOptions& options, std::optional<FileId> damaged) {
  OpenedModel opened;
  opened.flags = flags;
  SPILLWAY_ASSIGN_OR_RETURN(opened.device, open_device(device_choice(flags)));
  if (!flags.trace.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(opened.trace, Trace::open(flags.trace));
    opened.device->set_trace(opened.trace.get());
  }
  if (options.timeline) {
    auto timeline = std::make_unique<Timeline>(std::move(opened.trace));
    opened.timeline = timeline.get();
    opened.trace = std::move(timeline);
    // A GPU measures its ops with events of its own, which cost; a CPU's spans are nearly free.
    if (!flags.trace.empty() || opened.device->kind() == DeviceKind::kCpu) {
      opened.device->set_trace(opened.trace.get());
    }
  }
  SPILLWAY_ASSIGN_OR_RETURN(opened.model,
                            open_model_to_plan(model, flags, traits_of(*opened.device),
                                               {.accepts_source = options.accepts_source,
                                                .progress = ConvertPrinter(options),
                                                .damaged = damaged,
                                                .say = options.say}));
  if (!opened.model.dummy() && flags.rank == 0) {  // Of several ranks the first has requests.
    load_tokenizer(options, &opened);
    if (opened.tokenizer) {
      opened.chat = std::make_unique<ChatTemplate>(ChatTemplate::load(opened.model.table->files));
    }
  }
  return opened;
}

PlanMachine machine_of(const OpenedModel& opened, const HardwareProfile* profile) {
  const EngineFlags& flags = opened.flags;
  PlanMachine machine;
  machine.device = traits_of(*opened.device);
  machine.host_budget = host_budget(flags.host_memory_bytes);
  if (flags.host_memory_is_free) machine.host_budget.from_flag = false;
  if (machine.device.discrete()) {
    machine.device_budget = device_budget(machine.device.memory, flags.device_memory_bytes);
  }
  const Result<uint64_t> free = free_striped_bytes(scratch_directories(flags.disk_dirs));
  machine.disk_free_bytes = free.ok() ? free.value() : 0;
  machine.host_attention_pays = profile != nullptr && host_attention_pays(*profile);
  return machine;
}

Result<std::unique_ptr<Runtime>> open_runtime(OpenedModel opened, Plan plan,
                                              const RuntimeOptions& options) {
  auto state = std::make_unique<Runtime::State>();
  state->opened = std::move(opened);
  state->plan = std::move(plan);
  state->ranks = options.ranks;
  SPILLWAY_RETURN_IF_ERROR(Opener(options, *state).open());
  // The weight store has a table and a file of its own; this one holds the tokenizer's files, too.
  state->opened.model.file.reset();
  state->opened.model.table.reset();
  return std::make_unique<Runtime>(std::move(state));
}

namespace {

Result<std::unique_ptr<Runtime>> open_once(const std::string& model, const EngineFlags& flags,
                                           const RuntimeOptions& options,
                                           const Runtime::Planner& planner,
                                           std::optional<FileId> damaged, CachedFile* file) {
  SPILLWAY_ASSIGN_OR_RETURN(OpenedModel opened, open_model(model, flags, options, damaged));
  *file = {opened.model.cached, opened.model.table->file_id};
  SPILLWAY_ASSIGN_OR_RETURN(Plan plan, planner ? planner(opened) : default_plan(opened, options));
  return open_runtime(std::move(opened), std::move(plan), options);
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::open(const std::string& model, const EngineFlags& flags,
                                               const RuntimeOptions& options,
                                               const Planner& planner) {
  if (flags.stages > 1) {
    return invalid_argument("--stages is for serve, batch and bench; leave it out here");
  }
  say_least_room(flags.disk_dirs, options);
  std::optional<FileId> damaged;
  while (true) {
    CachedFile file;
    auto runtime = flags.rank_count() > 1
                       ? open_ranks(model, flags, options, planner, damaged, &file)
                       : open_once(model, flags, options, planner, damaged, &file);
    // A damaged file in the cache is packed again from its directory, once.
    if (runtime.status().code() != Code::kCorruption || !file.cached) return runtime;
    // It was written a moment ago: the disk does not give back what it was given.
    if (damaged) return Status(Code::kIoError, std::string(runtime.status().message()));
    damaged = file.id;
  }
}

}  // namespace spillway
