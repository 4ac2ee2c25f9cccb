#include "server/runtime.h"

#include "kernels/base/check.h"
#include "kernels/base/units.h"
#include "server/runtime_state.h"

namespace spillway {

<<<<<<< HEAD
=======
struct Runtime::State {
  std::unique_ptr<Device> device;
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Engine> engine;        // Until a scheduler takes it
  std::unique_ptr<Scheduler> scheduler;  // Uses all of the above: destroyed first.
  ModelShape shape;
  std::string model_name;
  std::string source;
  RuntimePlan plan;
};

namespace {

constexpr int64_t kBlockDefault = 256;  // Sequences
constexpr int64_t kBlockMax = 65536;

Status unsupported(const std::string& what) {
  return invalid_argument(what + " is not in this version, which keeps the whole model in memory");
}

// Flags that name things which later versions do.
Status check_supported(const EngineFlags& flags) {
  if (!flags.plan.empty()) return unsupported("--plan");
  if (!flags.trace.empty()) return unsupported("--trace");
  if (flags.kv_rule != "full") return unsupported("--kv-rule " + flags.kv_rule);
  const std::pair<const char*, const std::optional<TierPercent>*> splits[] = {
      {"--weights", &flags.weights}, {"--kv", &flags.kv}, {"--activations", &flags.activations}};
  for (const auto& [name, split] : splits) {
    if (split->has_value() && (**split)[2] != 0) return unsupported(std::string(name) + " on disk");
  }
  if (flags.block && (*flags.block < 1 || *flags.block > kBlockMax)) {
    return invalid_argument("--block must be 1 to " + std::to_string(kBlockMax));
  }
  return {};
}

Result<std::unique_ptr<Device>> open_device(const EngineFlags& flags) {
  if (flags.device == "cuda") return open_cuda_device(0);
  return open_cpu_device(static_cast<int>(std::min<int64_t>(flags.threads, 1 << 20)));
}

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

// What clients call the model: the last part of its path, without ".spill".
std::string name_of(const std::string& model, const ModelShape& shape) {
  std::filesystem::path path(model);
  if (!path.has_filename()) path = path.parent_path();
  const std::string name =
      path.extension() == ".spill" ? path.stem().string() : path.filename().string();
  return name.empty() || name == "." || name == ".." ? shape.name : name;
}

}  // namespace

>>>>>>> q4
Runtime::Runtime(std::unique_ptr<State> state) : state_(std::move(state)) {}
Runtime::~Runtime() = default;

const ModelShape& Runtime::shape() const {
  return state_->shape;
}
const std::string& Runtime::source() const {
  return state_->source;
}
const std::string& Runtime::model_name() const {
  return state_->model_name;
}
const Tokenizer* Runtime::tokenizer() const {
  return state_->tokenizer.get();
}
Scheduler& Runtime::scheduler() {
  SPILLWAY_CHECK(state_->scheduler != nullptr);
  return *state_->scheduler;
}
Engine& Runtime::engine() {
  SPILLWAY_CHECK(state_->engine != nullptr);
  return *state_->engine;
}
Device& Runtime::device() {
  return *state_->device;
}
const RuntimePlan& Runtime::plan() const {
  return state_->plan;
}

namespace {

<<<<<<< HEAD
// "3.2 GiB", or where it is when not all is in memory.
std::string tiers_text(const TierBytes& bytes) {
  const uint64_t memory = bytes.device + bytes.host;
  if (bytes.disk == 0) return format_bytes(memory);
  return format_bytes(memory + bytes.disk) + " (" + format_bytes(bytes.disk) + " on disk)";
=======
// Opens weights (and tokenizer) into `state`; says what it does.
template <class State>
Status open_dummy(const std::string& model, const EngineFlags& flags, const RuntimeOptions& options,
                  State& state) {
  SPILLWAY_ASSIGN_OR_RETURN(const ModelShape shape, find_model_shape(model));
  state.model_name = shape.name;
  state.shape = shape;
  state.source = "dummy " + shape.name + " " + std::to_string(flags.seed);
  if (options.tokenizer_only) return {};
  const DType format =
      flags.format.value_or(state.device->native_bf16() ? DType::kBF16 : DType::kF16);
  if (options.say) {
    options.say("Making random weights of " + shape.name + " in " +
                std::string(dtype_name(format)));
  }
  SPILLWAY_ASSIGN_OR_RETURN(state.weights,
                            WeightStore::dummy(*state.device, shape, format, flags.seed,
                                               LoadPrinter(options, "Making weights:")));
  return {};
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

template <class State>
Status open_file(const std::string& model, const EngineFlags& flags, const RuntimeOptions& options,
                 State& state) {
  Device& device = *state.device;
  ModelSourceOptions source;
  source.format = flags.format;
  source.bf16_for_f16 = device.native_bf16();
  source.layout = [&](DType format) { return device.matrix_layout(format); };
  source.announce = options.say;
  source.progress = ConvertPrinter(options);
  SPILLWAY_ASSIGN_OR_RETURN(const ModelSource found, resolve_model(model, source));
  if (options.say) {
    for (const std::string& warning : found.warnings) options.say("warning: " + warning);
  }
  SPILLWAY_ASSIGN_OR_RETURN(const ModelFile file, ModelFile::open(found.path));
  if (flags.format && *flags.format != file.table().format) {
    return invalid_argument(model + " holds " + std::string(dtype_name(file.table().format)) +
                            " weights and --format asks for " +
                            std::string(dtype_name(*flags.format)) +
                            "; convert the checkpoint again with that --format");
  }
  state.model_name = name_of(model, file.table().shape);
  state.shape = file.table().shape;
  state.source = file.table().source;
  state.plan.format = file.table().format;
  state.plan.kv_format = flags.kv_format.value_or(default_kv_format(file.table().format));
  if (file.table().format == DType::kQ4) state.plan.quantization = file.table().quantization();
  SPILLWAY_RETURN_IF_ERROR(load_tokenizer(file.table(), &state.tokenizer));
  if (options.tokenizer_only) return {};
  SPILLWAY_ASSIGN_OR_RETURN(
      state.weights, WeightStore::load(device, file, LoadPrinter(options, "Loading weights:")));
  if (state.weights->repacked() && options.say) {
    options.say(
        "The file was packed for another kind of machine; its weights were repacked while "
        "loading. Convert again to load faster.");
  }
  return {};
>>>>>>> q4
}

}  // namespace

<<<<<<< HEAD
=======
Result<std::unique_ptr<Runtime>> Runtime::open(const std::string& model, const EngineFlags& flags,
                                               const RuntimeOptions& options) {
  SPILLWAY_RETURN_IF_ERROR(check_supported(flags));
  auto state = std::make_unique<State>();
  SPILLWAY_ASSIGN_OR_RETURN(state->device, open_device(flags));
  const MemoryBudget budget = host_budget(flags.host_memory_bytes);
  const double start = steady_seconds();
  if (flags.dummy_weights) {
    SPILLWAY_RETURN_IF_ERROR(open_dummy(model, flags, options, *state));
  } else {
    SPILLWAY_RETURN_IF_ERROR(open_file(model, flags, options, *state));
  }
  if (options.tokenizer_only) return std::unique_ptr<Runtime>(new Runtime(std::move(state)));
  const ModelShape& shape = state->shape;
  RuntimePlan& plan = state->plan;
  plan.load_seconds = steady_seconds() - start;
  plan.format = state->weights->format();
  // The KV cache follows the weights' format; f16 needs no native arithmetic to be stored.
  plan.kv_format = flags.kv_format.value_or(default_kv_format(plan.format));

  SchedulerOptions scheduling;
  scheduling.block_sequences_max = flags.block.value_or(kBlockDefault);
  if (options.prefill_tokens_max > 0) scheduling.prefill_tokens_max = options.prefill_tokens_max;
  if (state->tokenizer != nullptr) {
    scheduling.sampling_vocabulary = static_cast<int64_t>(state->tokenizer->vocabulary());
  }
  EngineOptions engine_options;
  engine_options.kv_dtype = plan.kv_format;
  engine_options.sweep_tokens_max = sweep_tokens_max(shape, scheduling);
  engine_options.micro_batch_sequences = flags.micro_batch.value_or(0);
  engine_options.log = options.log;
  const DType activation = state->device->activation_dtype(plan.format);
  plan.weight_bytes = state->weights->resident_bytes();
  plan.buffer_bytes = engine_buffer_bytes(shape, activation, engine_options);
  plan.budget_bytes = budget.bytes;
  plan.block_sequences = scheduling.block_sequences_max;
  plan.micro_batch_tokens = engine_options.micro_batch_tokens;
  SPILLWAY_ASSIGN_OR_RETURN(
      plan.kv_bytes,
      kv_budget({.budget = budget,
                 .weight_bytes = plan.weight_bytes,
                 .buffer_bytes = plan.buffer_bytes,
                 .longest_sequence_bytes =
                     kv_layout(shape, plan.kv_format).sequence_bytes(shape.positions) *
                     static_cast<uint64_t>(shape.layers),
                 .block_sequences = plan.block_sequences}));
  engine_options.kv_bytes = plan.kv_bytes;
  SPILLWAY_ASSIGN_OR_RETURN(state->engine,
                            Engine::open(*state->device, *state->weights, engine_options));
  if (options.start_scheduler) {
    state->scheduler = start_scheduler(std::move(state->engine), scheduling);
  }
  return std::unique_ptr<Runtime>(new Runtime(std::move(state)));
}

>>>>>>> q4
std::string plan_line(const Runtime& runtime) {
  const RuntimePlan& plan = runtime.plan();
  std::string text = runtime.model_name() + ": weights " + tiers_text(plan.weights) + " in " +
                     std::string(dtype_name(plan.format)) + ", KV cache " + tiers_text(plan.kv) +
                     " in " + std::string(dtype_name(plan.kv_format)) + " for up to " +
                     std::to_string(plan.block_sequences) + " sequences, ";
  if (plan.staging_bytes > 0) {
    text += format_bytes(plan.staging_bytes) + " for what passes through, ";
  } else {
    text += "all in memory, ";
  }
  return text + "host memory budget " + format_bytes(plan.budget_bytes) + "; loaded in " +
         format_seconds(plan.load_seconds);
}

}  // namespace spillway
