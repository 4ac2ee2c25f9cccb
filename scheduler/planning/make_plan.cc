#include "scheduler/planning/make_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/base/checked_math.h"
#include "kernels/base/units.h"
#include "kernels/cpu_scratch.h"
#include "kernels/kv_layout.h"
#include "kernels/kv_state.h"
#include "kernels/ops.h"
#include "offload/io/io.h"
#include "policy/cost_model.h"
#include "scheduler/block_scheduler.h"
#include "scheduler/drafter.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/expanded_layer.h"
#include "scheduler/sequence.h"

namespace spillway {

namespace {

constexpr int64_t kBlockDefault = 256;  // Sequences
// When weights are streamed from disk a sweep takes seconds, which more sequences share.
constexpr int64_t kBlockDefaultStreaming = 1024;
constexpr int64_t kPrefillDefaultStreaming = 8192;  // Tokens per sweep
constexpr int64_t kBlockMax = 65536;
constexpr double kGatherSeconds = 0.02;
constexpr uint64_t kExpandedLayerPart = 8;  // At most 1 / this of the device's memory
constexpr uint64_t kTargetRingPart = 8;     // At most 1 / this of host memory for that ring
// Scratch space for sequences set aside: as many caches. It limits how many are admitted, by the
// most that they may need: enough for those that end after an eighth of it.
constexpr uint64_t kAsideCaches = 8;
// Of each GPU's memory, for NCCL's channels (4 MiB a channel, protocol and neighbour by default);
// not measured.
constexpr uint64_t kNcclBytes = uint64_t{512} << 20;
constexpr uint64_t kDiskShareUnasked = 4;  // Without --disk-memory: 1 / this of the free space
constexpr uint64_t kDiskReserveBytes = uint64_t{1} << 30;  // Left free on the scratch disk

double disk_share(const std::optional<TierPercent>& percent) {
  return percent ? (*percent)[2] / 100.0 : 0;
}
double host_share(const std::optional<TierPercent>& percent) {
  return percent ? (*percent)[1] / 100.0 : 0;
}

class Planner {
 public:
  Planner(const ModelToPlan& model, const PlanMachine& machine, const EngineFlags& flags,
          const PlanWishes& wishes)
      : model_(model),
        machine_(machine),
        flags_(flags),
        wishes_(wishes),
        host_memory_(rank_memory(*model.table, layers(), !machine.device.discrete())),
        whole_host_bytes_(machine.host_budget.bytes) {
    plan_.discrete = machine.device.discrete();
    // Ranks of one process divide its memory and its disk, which the flags name whole.
    machine_.host_budget.bytes = host_memory_.share_of(machine.host_budget.bytes);
    machine_.disk_free_bytes /= host_memory_.ranks;
    disk_memory_bytes_ = flags.disk_memory_bytes;
    if (disk_memory_bytes_) *disk_memory_bytes_ /= host_memory_.ranks;
  }

  Result<Plan> make() {
    if (flags_.block && (*flags_.block < 1 || *flags_.block > kBlockMax)) {
      return invalid_argument("--block must be 1 to " + std::to_string(kBlockMax));
    }
    SPILLWAY_RETURN_IF_ERROR(check_shape(machine_.device.kind, shape()));
    describe();
    host_attention_ = wants_host_attention();
    Status placed = plan_and_place();
    const bool unasked = flags_.attention != "host";
    if (host_attention_ && (placed.ok() ? plan_.placement.kv.host == 0
                                        : unasked && placed.code() == Code::kInfeasible)) {
      // Nothing to attend to, or not enough memory for its buffers.
      host_attention_ = false;
      placed = plan_and_place();
    }
    SPILLWAY_RETURN_IF_ERROR(placed);
    return std::move(plan_);
  }

 private:
  const ModelShape& shape() const { return model_.shape(); }
  const ModelFileTable& table() const { return *model_.table; }
  LayerRange layers() const { return wishes_.layers.value_or(all_layers(shape())); }
  const MemoryBudget& host_budget() const { return machine_.host_budget; }
  const MemoryBudget& device_budget() const { return machine_.device_budget; }
  EngineOptions& engine() { return plan_.engine; }

  void describe() {
    plan_.model_name = model_.name;
    plan_.shape = shape();
    plan_.format = table().format;
    plan_.matrix_layout = machine_.device.matrix_layout(plan_.format);
    plan_.in_named_format = table().in_named_format();
    if (table().mixed()) count_mixed_bytes();
    plan_.in_int8 = some_in_int8();
    engine().kv_format = flags_.kv_format.value_or(default_kv_format(plan_.format));
    plan_.scheduling.kv_rule = kv_rule_of(flags_);
    if (model_.file && is_quantized(plan_.format)) plan_.quantization = table().quantization();
  }

  // Whether some matrix is multiplied in 8 bits.
  bool some_in_int8() const {
    if (flags_.quantized_compute == "float") return false;
    const bool all = flags_.quantized_compute == "int8";
    const std::vector<TensorInfo>& tensors = table().tensors;
    return std::any_of(tensors.begin(), tensors.end(), [&](const TensorInfo& tensor) {
      if (tensor.spec.kind != WeightKind::kMatrix) return false;
      return all ? takes_int8(tensor.format)
                 : tensor.hadamard && machine_.device.in_int8(tensor.format);
    });
  }

  void count_mixed_bytes() {
    plan_.mixed_formats = table().formats_text();
    for (const TensorInfo& tensor : table().tensors) {
      if (tensor.spec.kind != WeightKind::kMatrix) continue;
      plan_.mixed_bytes[static_cast<size_t>(tensor.spec.role)] +=
          packed_bytes(plan_.matrix_layout, tensor.format, tensor.spec.rows, tensor.spec.columns);
    }
  }

  // Whether the CPU is to attend to the part of the cache that will live in host memory.
  bool wants_host_attention() const {
    if (!plan_.discrete || flags_.attention == "device") return false;
    return flags_.attention == "host" || machine_.host_attention_pays;
  }

  Status plan_and_place() {
    plan_process();
    expand_layer_ = wants_expanded_layer();
    Status placed = place_some_sweep();
    if (placed.code() == Code::kInfeasible && expand_layer_) {
      expand_layer_ = false;  // Affects speed alone
      placed = place_some_sweep();
    }
    return placed;
  }

  // Whether a layer's quantised weights are expanded once for a block: if that takes little of the
  // device's memory.
  bool wants_expanded_layer() const {
    if (!plan_.discrete || !is_quantized(plan_.format)) return false;
    const DType activation = machine_.device.activation_dtype(plan_.format);
    return ExpandedLayer::bytes(shape(), activation) <= device_budget().bytes / kExpandedLayerPart;
  }

  Status place_some_sweep() {
    plan_engine(streams());
    Status placed = place_all();
    if (placed.code() == Code::kInfeasible && streams()) {
      // Long sweeps are preferred if their activations fit; only the shorter ones must fit.
      plan_engine(false);
      placed = place_all();
    }
    return placed;
  }

  // What the driver, libraries and NCCL take of a GPU.
  uint64_t device_process_bytes() const {
    if (!plan_.discrete) return 0;
    return kDeviceProcessBytes + (shape().ranks > 1 ? kNcclBytes : 0);
  }

  // Bytes of KV cache for the longest sequence under the rule; if the run knows its lengths, for
  // those lengths.
  struct LongestKv {
    KvLayersBytes bytes;
    uint64_t staged_layer_max;  // Of a layer on disk under any rule a request may name
    int64_t positions;
    KvBudget budget;
    KvChunks chunks;
  };
  LongestKv longest_kv() const {
    const ModelShape& shape = this->shape();
    const bool known = wishes_.prompt_tokens > 0;
    const int64_t prompt = known ? wishes_.prompt_tokens : shape.positions;
    const int64_t more = known ? wishes_.new_tokens : 0;
    LongestKv longest;
    longest.positions = std::min(known ? kv_positions(prompt, more) : prompt, shape.positions);
    longest.budget = resolve(plan_.kv_rule(), prompt, more);
    longest.chunks = chunks_of(prompt, plan_.prefill_tokens());
    const auto bytes = [&](const KvBudget& budget, int64_t positions) {
      return kv_layers_bytes(shape, plan_.kv_format(), positions, budget, longest.chunks, layers());
    };
    longest.bytes = bytes(longest.budget, longest.positions);
    longest.staged_layer_max = longest.bytes.largest_staged;
    if (known) return longest;
    // The costliest rule keeps nearly every position, all but one of them by score.
    const KvBudget costliest{1, std::max<int64_t>(1, shape.positions - 2), true};
    for (const KvBudget& budget : {costliest, KvBudget()}) {
      longest.staged_layer_max =
          std::max(longest.staged_layer_max, bytes(budget, shape.positions).largest_staged);
    }
    return longest;
  }

  // The shares that a flag puts off the device: on a CPU its host share is the device's memory,
  // too.
  PlacementRequest::Shares shares(const std::optional<TierPercent>& percent) const {
    return {plan_.discrete ? host_share(percent) : 0, disk_share(percent)};
  }

  // Whether weights will be streamed through memory, as far as known before they are placed.
  bool streams() const {
    if (wishes_.streams) return true;
    if (flags_.weights) return shares(flags_.weights).away() > 0;
    const uint64_t weights = WeightPlacer(table(), wishes_.layers).weight_bytes();
    const uint64_t all = weights + longest_kv().bytes.memory;
    return plan_.discrete ? all + device_process_bytes() > device_budget().bytes
                          : all + plan_.process_bytes > host_budget().bytes;
  }

  // Plans the host memory that the process itself takes.
  void plan_process() {
    Plan& plan = plan_;
    uint64_t scratch = 0;
    if (!plan_.discrete || host_attention_) {
      const int64_t prompt = wishes_.prompt_tokens > 0 ? wishes_.prompt_tokens : shape().positions;
      // Longer ones go through in chunks, which attend to as many keys.
      const int64_t whole = std::max({kPrefillDefaultStreaming, wishes_.prefill_tokens_max,
                                      flags_.prefill_tokens.value_or(0)});
      scratch = cpu_scratch_bytes(shape(), flags_.threads, std::min(prompt, whole));
    }
    if (wishes_.requests) plan.requests = within(whole_host_bytes_, *wishes_.requests);
    // Ranks are in one process, of which each counts its share.
    const auto ranks = static_cast<uint64_t>(shape().ranks);
    const uint64_t requests = wishes_.requests ? plan.requests.total() : 0;
    plan.process_bytes = process_bytes(requests, scratch * ranks) / ranks;
    if (may_set_aside()) plan.process_bytes += kAsideStagingBytes;
  }

  // `long_sweeps`: many sequences and prompt tokens share a sweep.
  void plan_engine(bool long_sweeps) {
    const ModelShape& shape = this->shape();
    // A stage reads its weights once for each sub-block, of which there are as many as stages.
    const int64_t usual = (long_sweeps ? kBlockDefaultStreaming : kBlockDefault) *
                          (wishes_.layers ? flags_.stages : 1);
    plan_.scheduling.block_sequences_max =
        flags_.block.value_or(wishes_.block_sequences > 0 ? wishes_.block_sequences : usual);
    plan_.scheduling.prefill_tokens_max =
        long_sweeps ? kPrefillDefaultStreaming : SchedulerOptions().prefill_tokens_max;
    // Gathering requests does not pay for a sweep of a few milliseconds, only for one that reads
    // from disk, or goes through several machines.
    plan_.scheduling.gather_seconds = long_sweeps || wishes_.layers ? kGatherSeconds : 0;
    if (flags_.prefill_tokens || wishes_.prefill_tokens_max > 0) {
      plan_.scheduling.prefill_tokens_max =
          flags_.prefill_tokens.value_or(wishes_.prefill_tokens_max);
    }
    plan_.scheduling.prefill_target = flags_.prefill_target.value_or(0);
    // serve and batch, whose requests may end early, share; a command that measures computes all
    // prompts, unless it is told not to.
    const bool may_share = wishes_.may_end_early && alone();
    plan_.scheduling.prefix_cache_bytes =
        flags_.prefix_cache_bytes.value_or(may_share ? UINT64_MAX : 0);
    plan_.scheduling.draft_tokens = draft_tokens_of(flags_);
    engine().layers = wishes_.layers;
    engine().draft_rows_max = draft_rows_max();
    engine().sweep_tokens_max = sweep_tokens_max(shape, plan_.scheduling);
    engine().host_attention = host_attention_;
    engine().expand_layer = expand_layer_;
    // While the CPU attends for one micro-batch the device needs another one to compute.
    engine().micro_batch_sequences = flags_.micro_batch.value_or(
        host_attention_ ? (plan_.scheduling.block_sequences_max + 1) / 2 : 0);
    engine().activations_disk_share = shares(flags_.activations).disk;
    engine().activations_host_share = shares(flags_.activations).host;
    engine().overlap = !flags_.no_overlap;
    engine().prefault_memory = wishes_.prompt_tokens > 0;  // The cache is no larger than needed.
  }

  // Of a sweep with drafts, at least a sequence with one.
  int64_t draft_rows_max() const {
    const int64_t draft = plan_.scheduling.draft_tokens;
    return draft == 0 ? 0 : std::max(draft + 1, streams() ? kDraftRowsStreaming : kDraftRows);
  }

  Status place_all() {
    const EngineBytes bytes = engine_bytes(machine_.device, shape(), plan_.format, engine());
    const uint64_t free = machine_.disk_free_bytes;
    const LongestKv longest = longest_kv();
    PlacementRequest request;
    request.table = &table();
    request.layers = wishes_.layers;
    request.discrete = plan_.discrete;
    request.host = {.budget_bytes = host_budget().bytes,
                    .from_flag = host_budget().from_flag,
                    .process_bytes = plan_.process_bytes,
                    .buffer_bytes = bytes.host() + messages_bytes(),
                    .divided = host_memory_};
    request.device = {.budget_bytes = device_budget().bytes,
                      .from_flag = device_budget().from_flag,
                      .process_bytes = device_process_bytes(),
                      .buffer_bytes = bytes.device()};
    // Activations are placed first: their size is already fixed.
    const uint64_t rows_on_disk = bytes.activations.disk;
    const uint64_t usable = free - std::min(free, kDiskReserveBytes + rows_on_disk);
    // Without --disk-memory a cache for a block of longest sequences takes at most a share of the
    // disk.
    const uint64_t share = std::max(usable / kDiskShareUnasked, longest.bytes.memory * 2);
    const uint64_t allowed = disk_memory_bytes_.value_or(share + rows_on_disk);
    request.disk_free_bytes = usable;
    request.disk_bytes = std::min(usable, allowed - std::min(allowed, rows_on_disk));
    request.weights_in_scratch = model_.dummy();
    request.kv_staged_bytes_max = longest.staged_layer_max;
    request.kv_layer_disk_bytes = longest.bytes.largest_on_disk;
    request.kv_sequence_disk_bytes = longest.bytes.disk;
    request.kv_sequence_bytes_max = longest.bytes.memory;
    request.kv_bytes_wanted =
        longest.bytes.memory * static_cast<uint64_t>(plan_.scheduling.block_sequences_max);
    request.kv_ring_bytes_good = kv_ring_bytes_good(request.kv_bytes_wanted);
    if (flags_.weights) request.weights_shares = shares(flags_.weights);
    if (flags_.kv) request.kv_shares = shares(flags_.kv);
    SPILLWAY_ASSIGN_OR_RETURN(plan_.placement, place(request));
    const uint64_t on_disk = plan_.placement.kv.disk + rows_on_disk;
    if (disk_memory_bytes_ && on_disk > *disk_memory_bytes_) {
      return {Code::kInfeasible, "KV cache and activations need " + format_bytes(on_disk) +
                                     " on disk, and --disk-memory is " +
                                     format_bytes(*disk_memory_bytes_) +
                                     (shape().ranks > 1 ? " for each rank" : "") +
                                     "; raise it, or put less of --activations on disk"};
    }
    engine().kv_bytes = plan_.placement.kv.device;
    engine().kv_host_bytes = plan_.placement.kv.host;
    engine().kv_disk_bytes = plan_.placement.kv.disk;
    engine().kv_ring_bytes = plan_.placement.device_rings.kv;
    engine().kv_staging_bytes = plan_.placement.host_rings.kv;
    engine().kv_aside_bytes =
        kv_aside_bytes(request.disk_bytes - std::min(request.disk_bytes, plan_.placement.kv.disk));
    fill_plan(bytes);
    return {};
  }

  // Rows on their way between stages: those that came, those that go, and the next ones.
  uint64_t messages_bytes() const {
    if (!wishes_.layers) return 0;
    const auto tokens = static_cast<uint64_t>(plan_.engine.sweep_tokens_max);
    return 3 * tokens * static_cast<uint64_t>(shape().hidden) * sizeof(float);
  }

  // Whether no other rank has a part of the caches, which would have to be told of every change.
  bool alone() const { return !wishes_.layers && shape().ranks == 1; }

  // Whether sequences get their cache as they grow, and are set aside on disk where too many grow:
  // those that keep every row, and may end before the most that they may have.
  bool may_set_aside() const {
    return wishes_.may_end_early && alone() && plan_.kv_rule().kind == KvRuleKind::kFull &&
           shape().layers_with_window() == 0;
  }

  // Scratch space for sequences that are set aside, of `free` bytes that may be taken: all that are
  // admitted, up to a multiple of what the cache holds. Less than that is not worth it.
  uint64_t kv_aside_bytes(uint64_t free) const {
    const TierBytes& kv = plan_.placement.kv;
    const uint64_t cache = kv.device + kv.host + kv.disk;
    if (!may_set_aside() || free <= cache) return 0;
    return std::min(free, kAsideCaches * cache) / kIoAlignment * kIoAlignment;
  }

  // Where prompts are computed while the cache of the others is read, a layer's products take as
  // long as the whole block's cache of the next layer takes to arrive: with room for it the disk
  // never waits for attention. (Simulated of opt-6.7b in 8 GiB, 72 sequences of 256 + 64: 5.7
  // tokens/s, with a ring that holds nine tenths of it 5.2.)
  uint64_t kv_ring_bytes_good(uint64_t wanted) const {
    if (plan_.scheduling.prefill_target == 0) return 0;
    const uint64_t layer = wanted / static_cast<uint64_t>(layers().count);
    return std::min(layer + layer / 8, host_budget().bytes / kTargetRingPart);
  }

  // Bytes of one kind as the plan reports them: on a CPU, whose device tier is host memory, split
  // between device and host as the flag says.
  TierBytes by_tier(const std::optional<TierPercent>& percent, TierBytes bytes) const {
    if (plan_.discrete || !percent) return bytes;
    const int device = (*percent)[0], host = (*percent)[1];
    const double of_host = device + host == 0 ? 0 : static_cast<double>(host) / (device + host);
    bytes.host = static_cast<uint64_t>(of_host * static_cast<double>(bytes.device));
    bytes.device -= bytes.host;
    return bytes;
  }

  void fill_plan(const EngineBytes& bytes) {
    Plan& plan = plan_;
    const ActivationBytes& rows = bytes.activations;
    const WeightPlacement& weights = plan.placement.weights;
    plan.weights =
        by_tier(flags_.weights, {weights.memory_bytes, weights.host_bytes, weights.disk_bytes});
    plan.kv = by_tier(flags_.kv, plan.placement.kv);
    plan.activations =
        by_tier(flags_.activations,
                {bytes.buffers + rows.memory,
                 bytes.logits + bytes.rotary + bytes.host_attention + rows.host, rows.disk});
    plan.placement.host_rings.activations = rows.staging;
    plan.placement.device_rings.activations = rows.device_ring;
    plan.device_budget_bytes = device_budget().bytes;
    plan.budget_bytes = whole_host_bytes_;
    const LongestKv longest = longest_kv();
    plan.longest_positions = longest.positions;
    plan.longest_budget = longest.budget;
    plan.longest_chunks = longest.chunks;
    plan.percent.weights = flags_.weights.value_or(percent_of(plan.weights));
    plan.percent.kv = flags_.kv.value_or(percent_of(plan.kv));
    plan.percent.activations = flags_.activations.value_or(kAllOnDevice);
    plan.asked = {flags_.device_memory_bytes, flags_.host_memory_bytes, flags_.disk_memory_bytes,
                  flags_.prefill_tokens};
  }

  const ModelToPlan& model_;
  PlanMachine machine_;
  const EngineFlags& flags_;
  const PlanWishes& wishes_;
  const RankMemory host_memory_;
  const uint64_t whole_host_bytes_;
  std::optional<uint64_t> disk_memory_bytes_;
  bool expand_layer_ = false;
  bool host_attention_ = false;  // Requested, or faster, and the host has KV to attend to
  Plan plan_;
};

}  // namespace

Result<Plan> make_plan(const ModelToPlan& model, const PlanMachine& machine,
                       const EngineFlags& flags, const PlanWishes& wishes) {
  return Planner(model, machine, flags, wishes).make();
}

}  // namespace spillway
