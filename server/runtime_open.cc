// Opening a Runtime: from MODEL and the flags to memory.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "kernels/base/checked_math.h"
#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "kernels/cpu_scratch.h"
#include "kernels/ops.h"
#include "offload/io/io.h"
#include "offload/io/spill_file.h"
#include "offload/model_catalog.h"
#include "offload/model_source.h"
#include "offload/placement.h"
#include "policy/cost_model.h"
#include "scheduler/engine/expanded_layer.h"
#include "server/hardware_cache.h"
#include "server/machine.h"
#include "server/memory_budget.h"
#include "server/planning_device.h"
#include "server/runtime_state.h"

namespace spillway {

namespace {

constexpr int64_t kBlockDefault = 256;  // Sequences
// When weights come from disk a sweep costs seconds, which more sequences share.
constexpr int64_t kBlockDefaultStreaming = 1024;
constexpr int64_t kPrefillDefaultStreaming = 8192;  // Tokens of a sweep
constexpr int64_t kBlockMax = 65536;
constexpr double kGatherSeconds = 0.02;
constexpr uint64_t kExpandedLayerPart = 8;                 // Of the device's memory at most
constexpr uint64_t kDiskShareUnasked = 4;                  // One part of so many of what is free
constexpr uint64_t kDiskReserveBytes = uint64_t{1} << 30;  // Left free on the scratch disk

Status check_supported(const EngineFlags& flags) {
  if (flags.block && (*flags.block < 1 || *flags.block > kBlockMax)) {
    return invalid_argument("--block must be 1 to " + std::to_string(kBlockMax));
  }
  return {};
}

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

// The same for a conversion.
class ConvertPrinter {
 public:
  explicit ConvertPrinter(const RuntimeOptions& options)
      : printer_(std::make_shared<LoadPrinter>(options, "Converting:")) {}
  bool operator()(uint64_t done, uint64_t total) {
    (*printer_)(done, total);
    return true;
  }

 private:
  std::shared_ptr<LoadPrinter> printer_;  // std::function copies; the count must be one.
};

// Of a file that has no name any more, the one that the kernel still has for it.
std::string proc_name(const File& file) {
  return "/proc/self/fd/" + std::to_string(file.fd());
}

// What clients call the model: the last part of its path, without ".spill".
std::string name_of(const std::string& model, const ModelShape& shape) {
  std::filesystem::path path(model);
  if (!path.has_filename()) path = path.parent_path();
  const std::string name =
      path.extension() == ".spill" ? path.stem().string() : path.filename().string();
  return name.empty() || name == "." || name == ".." ? shape.name : name;
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

double disk_share(const std::optional<TierPercent>& percent) {
  return percent ? (*percent)[2] / 100.0 : 0;
}
double host_share(const std::optional<TierPercent>& percent) {
  return percent ? (*percent)[1] / 100.0 : 0;
}

// What memory and disk hold of one kind, told apart as the flag asks: on the CPU the device tier is
// host memory.
TierBytes by_tier(const std::optional<TierPercent>& percent, uint64_t memory, uint64_t disk) {
  const int device = percent ? (*percent)[0] : 100, host = percent ? (*percent)[1] : 0;
  const double of_host = device + host == 0 ? 0 : static_cast<double>(host) / (device + host);
  const auto host_bytes = static_cast<uint64_t>(of_host * static_cast<double>(memory));
  return {memory - host_bytes, host_bytes, disk};
}

class Opener {
 public:
  // `damaged`: as in ModelSourceOptions.
  Opener(const EngineFlags& flags, const RuntimeOptions& options, Runtime::State& state,
         std::optional<FileId> damaged)
      : flags_(flags),
        options_(options),
        state_(state),
        damaged_(damaged),
        budget_(options.hardware != nullptr
                    ? host_budget(*options.hardware, flags.host_memory_bytes)
                    : host_budget(flags.host_memory_bytes)) {}

  Status open(const std::string& model) {
    if (options_.hardware != nullptr) {
      if (flags_.q4_compute == "int8" && options_.hardware->compute.kind == "cuda") {
        return int8_is_for_cpus();
      }
      SPILLWAY_ASSIGN_OR_RETURN(state_.device, planning_device(*options_.hardware));
    } else {
      SPILLWAY_ASSIGN_OR_RETURN(state_.device, open_device(device_choice(flags_)));
    }
    own_memory_ = !state_.device->shares_host_memory();
    if (own_memory_) device_budget_ = device_budget(*state_.device, flags_.device_memory_bytes);
    if (!flags_.trace.empty()) {
      SPILLWAY_ASSIGN_OR_RETURN(state_.trace, Trace::open(flags_.trace));
      state_.device->set_trace(state_.trace.get());
    }
    SPILLWAY_RETURN_IF_ERROR(flags_.dummy_weights ? find_dummy(model) : find_file(model));
    if (options_.tokenizer_only) return {};
    SPILLWAY_RETURN_IF_ERROR(check_shape(state_.device->kind(), state_.shape));
    host_attention_ = wants_host_attention();
    Status placed = plan_and_place();
    const bool unasked = flags_.attention != "host";
    if (host_attention_ && (placed.ok() ? placement_.kv_host_bytes == 0
                                        : unasked && placed.code() == Code::kInfeasible)) {
      // There is nothing to attend to, or no room for its buffers.
      host_attention_ = false;
      placed = plan_and_place();
    }
    SPILLWAY_RETURN_IF_ERROR(placed);
    if (options_.plan_only) return {};
    if (own_memory_) {
      state_.plan.device_limit_bytes = device_limit(*state_.device, device_budget_);
      state_.device->limit_memory(state_.plan.device_limit_bytes);
    }
    SPILLWAY_RETURN_IF_ERROR(open_disk());
    const double start = steady_seconds();
    const Status loaded = load();
    if (loaded.code() == Code::kCorruption && cached_) damaged_ = table_.file_id;
    SPILLWAY_RETURN_IF_ERROR(loaded);
    state_.plan.load_seconds = steady_seconds() - start;
    return open_engine();
  }

  // Of the cached file that open() found to be damaged.
  std::optional<FileId> damaged() const { return damaged_; }

 private:
  Status plan_and_place() {
    plan_process();
    expand_layer_ = wants_expanded_layer();
    Status placed = place_some_sweep();
    if (placed.code() == Code::kInfeasible && expand_layer_) {
      expand_layer_ = false;  // A matter of speed alone
      placed = place_some_sweep();
    }
    return placed;
  }

  // Whether a layer's 4-bit weights are expanded once for a block: where that takes little of the
  // device's memory.
  bool wants_expanded_layer() const {
    if (!own_memory_ || state_.plan.format != DType::kQ4) return false;
    const DType activation = state_.device->activation_dtype(DType::kQ4);
    return ExpandedLayer::bytes(state_.shape, activation) <=
           device_budget_.bytes / kExpandedLayerPart;
  }

  Status place_some_sweep() {
    plan_engine(streams());
    Status placed = place_all();
    if (placed.code() == Code::kInfeasible && streams()) {
      // Long sweeps are worth their activations where these fit; shorter ones are what must fit.
      plan_engine(false);
      placed = place_all();
    }
    return placed;
  }

  // Whether the CPU is to attend to what will be in host memory of the cache.
  bool wants_host_attention() const {
    if (!own_memory_ || flags_.attention == "device") return false;
    if (flags_.attention == "host") return true;
    if (options_.hardware != nullptr) return host_attention_pays(*options_.hardware);
    const auto profile = cached_profile(*state_.device, scratch_directory(flags_.disk_dir));
    if (!profile.ok()) {
      if (profile.status().code() != Code::kNotFound) {
        say("warning: attention runs on the device: " + std::string(profile.status().message()));
      }
      return false;
    }
    return profile.value() && host_attention_pays(*profile.value());
  }

  void say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }

  Status find_dummy(const std::string& model) {
    SPILLWAY_ASSIGN_OR_RETURN(state_.shape, find_model_shape(model));
    state_.model_name = state_.shape.name;
    state_.source = "dummy " + state_.shape.name + " " + std::to_string(flags_.seed);
    const DType format =
        flags_.format.value_or(state_.device->native_bf16() ? DType::kBF16 : DType::kF16);
    set_formats(format);
    table_ = plan_model_file(state_.shape, format, state_.device->matrix_layout(format));
    return {};
  }

  Status find_file(const std::string& model) {
    Device& device = *state_.device;
    ModelSourceOptions source;
    source.format = flags_.format;
    // A CPU computes with f16 weights in float32 only; other devices take them as they are.
    source.bf16_for_f16 = !own_memory_ && device.native_bf16();
    source.layout = [&](DType format) { return device.matrix_layout(format); };
    source.accepts = [&](const ModelShape& shape) { return check_shape(device.kind(), shape); };
    source.accepts_source = options_.accepts_source;
    source.announce = options_.say;
    source.progress = ConvertPrinter(options_);
    source.damaged = damaged_;
    SPILLWAY_ASSIGN_OR_RETURN(const ModelSource found, resolve_model(model, source));
    cached_ = found.cached;
    for (const std::string& warning : found.warnings) say("warning: " + warning);
    SPILLWAY_ASSIGN_OR_RETURN(ModelFile file, ModelFile::open(found.path));
    file_.emplace(std::move(file));
    table_ = file_->table();
    if (flags_.format && *flags_.format != table_.format) {
      return invalid_argument(model + " holds " + std::string(dtype_name(table_.format)) +
                              " weights and --format asks for " +
                              std::string(dtype_name(*flags_.format)) +
                              "; convert the checkpoint again with that --format");
    }
    state_.model_name = name_of(model, table_.shape);
    state_.shape = table_.shape;
    state_.source = table_.source;
    set_formats(table_.format);
    if (table_.format == DType::kQ4) state_.plan.quantization = table_.quantization();
    return options_.plan_only ? Status() : load_tokenizer(table_, &state_.tokenizer);
  }

  void set_formats(DType format) {
    state_.plan.format = format;
    state_.plan.q4_in_int8 = format == DType::kQ4 && flags_.q4_compute == "int8";
    if (flags_.q4_compute == "int8" && !state_.plan.q4_in_int8) {
      say("warning: --q4-compute int8 is for 4-bit weights; these are " +
          std::string(dtype_name(format)));
    }
    state_.plan.kv_format = flags_.kv_format.value_or(default_kv_format(format));
    state_.plan.kv_rule = kv_rule_of(flags_);
  }

  // The KV cache of the longest sequence under the rule, in bytes; of a run that knows its lengths,
  // of those.
  struct LongestKv {
    uint64_t disk_layer, sequence;  // A layer on disk; all layers in memory
    uint64_t disk_layer_max;        // A layer on disk under whatever rule a request may name
    int64_t positions;
    KvBudget budget;
  };
  LongestKv longest_kv() const {
    const ModelShape& shape = state_.shape;
    const bool known = options_.prompt_tokens > 0;
    const int64_t prompt = known ? options_.prompt_tokens : shape.positions;
    const int64_t more = known ? options_.new_tokens : 0;
    LongestKv longest;
    longest.positions = std::min(known ? kv_positions(prompt, more) : prompt, shape.positions);
    longest.budget = resolve(state_.plan.kv_rule, prompt, more);
    const auto bytes = [&](const KvBudget& budget, int64_t slots) {
      return std::pair{KvStateLayout{shape.kv_heads, budget}.bytes(),
                       kv_layout(shape, state_.plan.kv_format).sequence_bytes(slots)};
    };
    const auto [state, rows] = bytes(longest.budget, longest.budget.slots(longest.positions));
    longest.disk_layer = round_up(state, kIoAlignment) + rows;
    longest.sequence = (state + rows) * static_cast<uint64_t>(shape.layers);
    // Nearly every position, all but one of them by score.
    const auto [most_state, most_rows] =
        bytes({1, std::max<int64_t>(1, shape.positions - 2), true}, shape.positions);
    longest.disk_layer_max =
        known ? longest.disk_layer : round_up(most_state, kIoAlignment) + most_rows;
    return longest;
  }

  // Whether weights will pass through memory, as far as one can know before they are placed.
  bool streams() const {
    if (flags_.weights) {
      return own_memory_ ? (*flags_.weights)[0] < 100 : disk_share(flags_.weights) > 0;
    }
    const uint64_t all = table_.weight_bytes() + longest_kv().sequence;
    return own_memory_ ? all + kDeviceProcessBytes > device_budget_.bytes
                       : all + state_.plan.process_bytes > budget_.bytes;
  }

  // What the process takes by itself, of the host's memory.
  void plan_process() {
    RuntimePlan& plan = state_.plan;
    uint64_t scratch = 0;
    if (!own_memory_ || host_attention_) {
      const int64_t prompt =
          options_.prompt_tokens > 0 ? options_.prompt_tokens : state_.shape.positions;
      scratch = cpu_scratch_bytes(state_.shape, flags_.threads, prompt);
    }
    if (options_.requests) plan.requests = within(budget_.bytes, *options_.requests);
    plan.process_bytes = process_bytes(options_.requests ? plan.requests.total() : 0, scratch);
  }

  // `long_sweeps`: many sequences and prompt tokens share one.
  void plan_engine(bool long_sweeps) {
    const ModelShape& shape = state_.shape;
    scheduling_.block_sequences_max =
        flags_.block.value_or(long_sweeps ? kBlockDefaultStreaming : kBlockDefault);
    scheduling_.prefill_tokens_max =
        long_sweeps ? kPrefillDefaultStreaming : SchedulerOptions().prefill_tokens_max;
    scheduling_.kv_rule = state_.plan.kv_rule;
    // A sweep of a few milliseconds' work is not worth waiting for; one over the disk is.
    scheduling_.gather_seconds = long_sweeps ? kGatherSeconds : 0;
    if (options_.prefill_tokens_max > 0) {
      scheduling_.prefill_tokens_max = options_.prefill_tokens_max;
    }
    if (state_.tokenizer != nullptr) {
      scheduling_.sampling_vocabulary = static_cast<int64_t>(state_.tokenizer->vocabulary());
    }
    engine_.kv_dtype = state_.plan.kv_format;
    engine_.sweep_tokens_max = sweep_tokens_max(shape, scheduling_);
    engine_.host_attention = host_attention_;
    engine_.expand_layer = expand_layer_;
    // While the CPU attends for one micro-batch the device needs another.
    engine_.micro_batch_sequences = flags_.micro_batch.value_or(
        host_attention_ ? (scheduling_.block_sequences_max + 1) / 2 : 0);
    engine_.activations_disk_share = disk_share(flags_.activations);
    engine_.activations_host_share = own_memory_ ? host_share(flags_.activations) : 0;
    engine_.overlap = !flags_.no_overlap;
    engine_.touch_memory = options_.prompt_tokens > 0;  // The cache is no larger than the run's.
    engine_.log = options_.log;
    engine_.trace = state_.trace.get();
  }

  uint64_t free_disk() const {
    if (options_.hardware != nullptr) {
      return static_cast<uint64_t>(options_.hardware->disk.free_bytes.value);
    }
    const Result<uint64_t> free = free_disk_bytes(scratch_path_);
    return scratch_path_.empty() || !free.ok() ? 0 : free.value();
  }

  Status place_all() {
    const EngineBytes bytes =
        engine_bytes(*state_.device, state_.shape, state_.plan.format, engine_);
    scratch_path_ = scratch_directory(flags_.disk_dir);
    const uint64_t free = free_disk();
    const LongestKv longest = longest_kv();
    PlacementRequest request;
    request.table = &table_;
    request.memory_bytes = budget_.bytes;
    request.memory_from_flag = budget_.from_flag;
    // Activations come first: how many there are is settled.
    const uint64_t rows_on_disk = bytes.activations.disk;
    const uint64_t usable = free - std::min(free, kDiskReserveBytes + rows_on_disk);
    // Unasked, a cache for a block of longest sequences takes no more than a share of the disk.
    const uint64_t share = std::max(usable / kDiskShareUnasked, longest.sequence * 2);
    const uint64_t allowed = flags_.disk_memory_bytes.value_or(share + rows_on_disk);
    request.disk_free_bytes = usable;
    request.disk_bytes = std::min(usable, allowed - std::min(allowed, rows_on_disk));
    request.weights_in_scratch = !file_.has_value();
    request.process_bytes = state_.plan.process_bytes;
    request.buffer_bytes = own_memory_ ? bytes.host() : bytes.memory();
    request.kv_staged_bytes_max = longest.disk_layer_max;
    request.kv_layer_disk_bytes = longest.disk_layer;
    request.kv_layers = static_cast<uint64_t>(state_.shape.layers);
    request.kv_sequence_bytes_max = longest.sequence;
    request.kv_bytes_wanted =
        longest.sequence * static_cast<uint64_t>(scheduling_.block_sequences_max);
    if (flags_.weights) request.weights_disk_share = disk_share(flags_.weights);
    if (flags_.kv) request.kv_disk_share = disk_share(flags_.kv);
    if (own_memory_) {
      request.device = {.bytes = device_budget_.bytes,
                        .from_flag = device_budget_.from_flag,
                        .process_bytes = kDeviceProcessBytes,
                        .buffer_bytes = bytes.memory(),
                        .weights_host_share = host_share(flags_.weights),
                        .kv_host_share = host_share(flags_.kv)};
    }
    SPILLWAY_ASSIGN_OR_RETURN(placement_, place(request));
    engine_.kv_bytes = placement_.kv_memory_bytes;
    engine_.kv_host_bytes = placement_.kv_host_bytes;
    engine_.kv_ring_bytes = placement_.kv_ring_bytes;
    engine_.kv_disk_bytes = placement_.kv_disk_bytes;
    engine_.kv_staging_bytes = placement_.kv_staging_bytes;
    fill_plan(bytes);
    return {};
  }

  void fill_plan(const EngineBytes& bytes) {
    RuntimePlan& plan = state_.plan;
    const ActivationBytes& rows = bytes.activations;
    plan.weights =
        by_tier(flags_.weights, placement_.weights.memory_bytes, placement_.weights.disk_bytes);
    plan.kv = by_tier(flags_.kv, placement_.kv_memory_bytes, placement_.kv_disk_bytes);
    plan.activations =
        by_tier(flags_.activations, bytes.buffers + rows.memory - rows.staging, rows.disk);
    if (own_memory_) {
      plan.weights = {placement_.weights.memory_bytes, placement_.weights.host_bytes,
                      placement_.weights.disk_bytes};
      plan.kv = {placement_.kv_memory_bytes, placement_.kv_host_bytes, placement_.kv_disk_bytes};
      plan.activations = {bytes.buffers + rows.memory,
                          bytes.logits + bytes.host_attention + rows.host, rows.disk};
      plan.device_budget_bytes = device_budget_.bytes;
      plan.device_staging_bytes =
          placement_.device_ring_bytes + placement_.kv_ring_bytes + rows.device_ring;
      plan.device_rings = {placement_.device_ring_bytes, placement_.kv_ring_bytes,
                           rows.device_ring};
    }
    plan.host_rings = {placement_.ring_bytes, placement_.kv_staging_bytes, rows.staging};
    plan.staging_bytes = placement_.ring_bytes + placement_.kv_staging_bytes + rows.staging;
    plan.budget_bytes = budget_.bytes;
    plan.block_sequences = scheduling_.block_sequences_max;
    plan.micro_batch_tokens = engine_.micro_batch_tokens;
    plan.micro_batch_sequences = engine_.micro_batch_sequences;
    plan.prefill_tokens = scheduling_.prefill_tokens_max;
    plan.host_attention = engine_.host_attention;
  }

  // What lives on disk needs transfers; what is not in a model file needs scratch files.
  Status open_disk() {
    const RuntimePlan& plan = state_.plan;
    if (plan.weights.disk + plan.kv.disk + plan.activations.disk == 0) return {};
    SPILLWAY_ASSIGN_OR_RETURN(state_.io, open_io(IoOptions()));
    if (state_.io->name() != "io_uring") {
      say("The kernel gives no io_uring here; the disk is read and written by threads, which cost "
          "more of the processor.");
    }
    state_.transfers = std::make_unique<TransferQueue>(*state_.io, state_.trace.get());
    const uint64_t dummy = file_ ? 0 : plan.weights.disk;
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
    options.placement = placement_.weights;
    options.ring_bytes = placement_.ring_bytes;
    options.device_ring_bytes = placement_.device_ring_bytes;
    options.prefetch = engine_.overlap;
    options.verify = flags_.verify == "every"   ? VerifyReads::kEvery
                     : flags_.verify == "first" ? VerifyReads::kFirst
                                                : VerifyReads::kSample;
    options.transfers = state_.transfers.get();
    options.progress = LoadPrinter(options_, file_ ? "Loading weights:" : "Making weights:");
    RuntimePlan& plan = state_.plan;
    if (file_) {
      if (plan.weights.disk > 0) plan.weights_file = file_->path();
      SPILLWAY_ASSIGN_OR_RETURN(state_.weights, WeightStore::load(*state_.device, *file_, options));
    } else {
      say("Making random weights of " + state_.shape.name + " in " +
          std::string(dtype_name(plan.format)));
      if (plan.weights.disk > 0) plan.weights_file = proc_name(dummy_file_);
      options.scratch = std::move(dummy_file_);
      SPILLWAY_ASSIGN_OR_RETURN(
          state_.weights, WeightStore::dummy(*state_.device, state_.shape, plan.format, flags_.seed,
                                             std::move(options)));
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
    const LongestKv longest = longest_kv();
    state_.plan.sequences_at_once =
        std::min(state_.plan.block_sequences,
                 state_.engine->kv().sequences_at_once(longest.positions, longest.budget));
    if (options_.start_scheduler) {
      state_.scheduler = start_scheduler(std::move(state_.engine), scheduling_);
    }
    return {};
  }

  const EngineFlags& flags_;
  const RuntimeOptions& options_;
  Runtime::State& state_;
  std::optional<FileId> damaged_;
  bool cached_ = false;  // The packed file is a directory's, in the cache
  const MemoryBudget budget_;
  MemoryBudget device_budget_;
  bool own_memory_ = false;  // The device has some
  bool expand_layer_ = false;
  bool host_attention_ = false;  // Asked for, or faster, and there is something to attend to
  ModelFileTable table_;
  std::optional<ModelFile> file_;  // None: dummy weights
  SchedulerOptions scheduling_;
  EngineOptions engine_;
  Placement placement_;
  std::string scratch_path_;  // Empty: there is none
  File dummy_file_;
  EngineScratch files_;
};

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::open(const std::string& model, const EngineFlags& flags,
                                               const RuntimeOptions& options) {
  SPILLWAY_RETURN_IF_ERROR(check_supported(flags));
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
