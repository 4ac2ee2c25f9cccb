// Opens a Runtime: allocates and loads what MODEL and the flags describe.
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
#include "server/runtime_state.h"

namespace spillway {

namespace {

using FileId = decltype(ModelFileTable::file_id);

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

// The kernel's name for an open file that has no name of its own any more.
std::string proc_name(const File& file) {
  return "/proc/self/fd/" + std::to_string(file.fd());
}

Status load_tokenizer(const ModelFileTable& table, std::unique_ptr<Tokenizer>* tokenizer) {
  const ModelShape& shape = table.shape;
  TokenizerDefaults defaults;
  defaults.bos = shape.bos_token;
  defaults.eos = shape.eos_tokens.empty() ? -1 : shape.eos_tokens.front();
  defaults.pad = shape.pad_token;
  Result<Tokenizer> loaded = Tokenizer::load(table.files, defaults);
  if (loaded.status().code() == Code::kNotFound) return {};  // Token-id prompts work without.
  if (!loaded.ok()) return loaded.status().at("tokenizer");
  *tokenizer = std::make_unique<Tokenizer>(std::move(loaded).value());
  return {};
}

class Opener {
 public:
  // `damaged`: as in ModelSourceOptions.
  Opener(const EngineFlags& flags, const RuntimeOptions& options, Runtime::State& state,
         std::optional<FileId> damaged)
      : flags_(flags), options_(options), state_(state), damaged_(damaged) {}

  Status open(const std::string& model) {
    SPILLWAY_ASSIGN_OR_RETURN(state_.device, open_device(device_choice(flags_)));
    const DeviceTraits traits = traits_of(*state_.device);
    if (!flags_.trace.empty()) {
      SPILLWAY_ASSIGN_OR_RETURN(state_.trace, Trace::open(flags_.trace));
      state_.device->set_trace(state_.trace.get());
    }
    SPILLWAY_ASSIGN_OR_RETURN(model_, open_model_to_plan(model, flags_, traits,
                                                         {.accepts_source = options_.accepts_source,
                                                          .progress = ConvertPrinter(options_),
                                                          .damaged = damaged_,
                                                          .say = options_.say}));
    state_.plan.shape = model_.shape();
    state_.plan.model_name = model_.name;
    state_.plan.format = model_.table->format;
    state_.source = model_.source;
    if (model_.file) SPILLWAY_RETURN_IF_ERROR(load_tokenizer(*model_.table, &state_.tokenizer));
    if (options_.tokenizer_only) return {};
    SPILLWAY_RETURN_IF_ERROR(plan(traits));
    SPILLWAY_RETURN_IF_ERROR(open_disk());
    const double start = steady_seconds();
    const Status loaded = load();
    if (loaded.code() == Code::kCorruption && model_.cached) damaged_ = model_.table->file_id;
    SPILLWAY_RETURN_IF_ERROR(loaded);
    state_.plan.load_seconds = steady_seconds() - start;
    return open_engine();
  }

  // The cached file that open() found to be damaged.
  std::optional<FileId> damaged() const { return damaged_; }

 private:
  void say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }

  Status plan(const DeviceTraits& traits) {
    scratch_path_ = scratch_directory(flags_.disk_dir);
    const Result<uint64_t> free = free_disk_bytes(scratch_path_);
    PlanMachine machine;
    machine.device = traits;
    machine.host_budget = host_budget(flags_.host_memory_bytes);
    if (traits.discrete()) {
      machine.device_budget = device_budget(traits.memory, flags_.device_memory_bytes);
    }
    machine.disk_free_bytes = scratch_path_.empty() || !free.ok() ? 0 : free.value();
    machine.host_attention_pays = attention_pays_here(traits);
    SPILLWAY_ASSIGN_OR_RETURN(state_.plan, make_plan(model_, machine, flags_, options_.wishes));
    if (traits.discrete()) {
      state_.plan.device_limit_bytes = device_limit(*state_.device, machine.device_budget);
      state_.device->limit_memory(state_.plan.device_limit_bytes);
    }
    engine_ = state_.plan.engine;
    engine_.log = options_.log;
    engine_.trace = state_.trace.get();
    scheduling_ = state_.plan.scheduling;
    if (state_.tokenizer != nullptr) {
      scheduling_.sampling_vocabulary = static_cast<int64_t>(state_.tokenizer->vocabulary());
    }
    return {};
  }

  // Whether CPU attention pays by this machine's profile; looked up only with --attention auto.
  bool attention_pays_here(const DeviceTraits& traits) const {
    if (!traits.discrete() || flags_.attention != "auto") return false;
    const auto profile = cached_profile(*state_.device, scratch_path_);
    if (!profile.ok()) {
      if (profile.status().code() != Code::kNotFound) {
        say("warning: attention runs on the device: " + std::string(profile.status().message()));
      }
      return false;
    }
    return profile.value() && host_attention_pays(*profile.value());
  }

  // Data on disk needs transfers; data that is not in a model file needs scratch files.
  Status open_disk() {
    const Plan& plan = state_.plan;
    if (plan.weights.disk + plan.kv.disk + plan.activations.disk == 0) return {};
    SPILLWAY_ASSIGN_OR_RETURN(state_.io, open_io(IoOptions()));
    if (state_.io->name() != "io_uring") {
      say("The kernel gives no io_uring here; the disk is read and written by threads, which cost "
          "more of the processor.");
    }
    state_.transfers = std::make_unique<TransferQueue>(*state_.io, state_.trace.get());
    const uint64_t dummy = model_.file ? 0 : plan.weights.disk;
    const uint64_t needed = dummy + plan.kv.disk + plan.activations.disk;
    if (needed == 0) return {};
    if (flags_.disk_memory_bytes && needed - dummy > *flags_.disk_memory_bytes) {
      return {Code::kInfeasible, "KV cache and activations need " + format_bytes(needed - dummy) +
                                     " on disk, and --disk-memory is " +
                                     format_bytes(*flags_.disk_memory_bytes)};
    }
    if (scratch_path_.empty()) {
      return invalid_argument("there is no home directory for scratch files; give --disk-dir");
    }
    SPILLWAY_ASSIGN_OR_RETURN(const SpillDirectory scratch, SpillDirectory::open(scratch_path_));
    const auto create = [&](uint64_t bytes, File* file) -> Status {
      if (bytes == 0) return {};
      SPILLWAY_ASSIGN_OR_RETURN(*file, scratch.create(bytes));
      return {};
    };
    state_.plan.disk_dir = scratch_path_;
    SPILLWAY_RETURN_IF_ERROR(create(dummy, &dummy_file_));
    SPILLWAY_RETURN_IF_ERROR(create(plan.kv.disk, &files_.kv));
    if (plan.kv.disk > 0) state_.plan.kv_file = proc_name(files_.kv);
    return create(plan.activations.disk, &files_.activations);
  }

  Status load() {
    WeightStoreOptions options;
    options.placement = state_.plan.placement.weights;
    options.ring_bytes = state_.plan.placement.host_rings.weights;
    options.device_ring_bytes = state_.plan.placement.device_rings.weights;
    options.prefetch = engine_.overlap;
    options.verify = flags_.verify == "every"   ? VerifyReads::kEvery
                     : flags_.verify == "first" ? VerifyReads::kFirst
                                                : VerifyReads::kSample;
    options.transfers = state_.transfers.get();
    options.progress = LoadPrinter(options_, model_.file ? "Loading weights:" : "Making weights:");
    Plan& plan = state_.plan;
    if (model_.file) {
      if (plan.weights.disk > 0) plan.weights_file = model_.file->path();
      SPILLWAY_ASSIGN_OR_RETURN(state_.weights,
                                WeightStore::load(*state_.device, *model_.file, options));
    } else {
      say("Making random weights of " + state_.plan.shape.name + " in " +
          std::string(format_name(plan.format)));
      if (plan.weights.disk > 0) plan.weights_file = proc_name(dummy_file_);
      options.scratch = std::move(dummy_file_);
      SPILLWAY_ASSIGN_OR_RETURN(state_.weights,
                                WeightStore::dummy(*state_.device, state_.plan.shape, plan.format,
                                                   flags_.seed, std::move(options)));
    }
    if (state_.weights->repacked()) {
      say("The file was packed for another kind of machine; its weights were repacked while "
          "loading. Convert again to load faster.");
    }
    return {};
  }

  Status open_engine() {
    files_.transfers = state_.transfers.get();
    if (engine_.host_attention) {
      SPILLWAY_ASSIGN_OR_RETURN(state_.host, open_cpu_device(static_cast<int>(flags_.threads)));
      state_.host->set_trace(state_.trace.get());
      engine_.host = state_.host.get();
    }
    SPILLWAY_ASSIGN_OR_RETURN(
        state_.engine, Engine::open(*state_.device, *state_.weights, engine_, std::move(files_)));
    Plan& plan = state_.plan;
    plan.sequences_at_once = std::min(
        plan.block_sequences,
        state_.engine->kv().sequences_at_once(plan.longest_positions, plan.longest_budget));
    if (options_.start_scheduler) {
      state_.scheduler = start_scheduler(std::move(state_.engine), scheduling_);
    }
    return {};
  }

  const EngineFlags& flags_;
  const RuntimeOptions& options_;
  Runtime::State& state_;
  std::optional<FileId> damaged_;
  ModelToPlan model_;
  SchedulerOptions scheduling_;
  EngineOptions engine_;
  std::string scratch_path_;  // Empty: there is none
  File dummy_file_;
  EngineScratch files_;
};

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::open(const std::string& model, const EngineFlags& flags,
                                               const RuntimeOptions& options) {
  std::optional<FileId> damaged;
  while (true) {
    auto state = std::make_unique<State>();
    Opener opener(flags, options, *state, damaged);
    const Status opened = opener.open(model);
    if (opened.ok()) return std::unique_ptr<Runtime>(new Runtime(std::move(state)));
    // A damaged file in the cache is packed again from its directory, once.
    if (damaged || !opener.damaged()) return opened;
    damaged = opener.damaged();
  }
}

}  // namespace spillway
