#include "policy/flexgen/flexgen_schedule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/linear_shapes.h"

namespace spillway {

namespace {

using Task = Simulation::Task;
using Tasks = std::vector<Task>;
constexpr Task kNone = Simulation::kNone;

constexpr double kBytes = 2;             // Per number
constexpr int64_t kDecodeStepsMax = 32;  // Simulated; beyond it, some steps stand for others

enum class LayerKind : uint8_t { kInput, kAttention, kMlp, kOutput };

struct Tensor {
  double elements;
  bool matrix;
};

// The tensors in FlexGen's order: matrices with their biases, then the norm's.
std::vector<Tensor> tensors_of(LayerKind kind, const ModelShape& shape) {
  const auto h = static_cast<double>(shape.hidden), wide = static_cast<double>(shape.mlp);
  const auto words = static_cast<double>(shape.vocabulary);
  const auto rows = static_cast<double>(shape.positions + shape.position_offset);
  const Tensor norm{h, false};
  switch (kind) {
    case LayerKind::kInput:
      return {{words * h, true}, {rows * h, true}};
    case LayerKind::kAttention: {
      const Tensor matrix{h * h, true}, bias{h, false};
      return {matrix, bias, matrix, bias, matrix, bias, matrix, bias, norm, norm};
    }
    case LayerKind::kMlp:
      return {{wide * h, true}, {wide, false}, {h * wide, true}, {h, false}, norm, norm};
    case LayerKind::kOutput:
      return {norm, norm, {words * h, true}};
  }
  return {};
}

enum class TensorTier : uint8_t { kDisk, kHost, kDevice };

// The tier of each tensor of a layer, by the middle of its bytes.
std::vector<TensorTier> tiers_of(const std::vector<Tensor>& tensors, const PerTier& shares) {
  double all = 0, before = 0;
  for (const Tensor& tensor : tensors) all += tensor.elements;
  std::vector<TensorTier> tiers;
  for (const Tensor& tensor : tensors) {
    const double middle = (before + tensor.elements / 2) / all;
    before += tensor.elements;
    tiers.push_back(middle < shares.disk                 ? TensorTier::kDisk
                    : middle < shares.disk + shares.host ? TensorTier::kHost
                                                         : TensorTier::kDevice);
  }
  return tiers;
}

// The generation loop, adding tasks.
class Loop {
 public:
  Loop(Simulation* simulation, const FlexgenRun& run, const MachineRates& rates)
      : simulation_(*simulation),
        run_(run),
        rates_(rates),
        hidden_(static_cast<double>(run.shape.hidden)),
        batch_(static_cast<double>(run.block.micro_batch)),
        batches_(run.block.micro_batches),
        layers_(2 * run.shape.layers + 2) {
    device_ = simulation_.add_resource("compute");
    host_ = simulation_.add_resource("host compute");
    up_ = simulation_.add_resource("host to device");
    down_ = simulation_.add_resource("device to host");
    disk_read_ = simulation_.add_resource("disk read");
    disk_write_ = simulation_.add_resource("disk write");
    if (run.overlap) {
      load_weights(0);
      barrier();
    }
  }

  // Adds a token of every sequence (the first is the prompts' pass); returns its end.
  Task token(int64_t i, bool last) {
    begin_token(i);
    return layers(0, layers_, last);
  }

  // Adds some layers of the token that was begun.
  Task layers(int64_t from, int64_t to, bool last) {
    for (int64_t j = from; j < to; ++j) {
      if (!run_.overlap) load_weights(j);
      for (int64_t k = 0; k < batches_; ++k) {
        run_.overlap ? step(j, k, last) : step_in_turn(j, k);
      }
    }
    return barrier_;
  }

  void begin_token(int64_t i) { token_ = i; }
  int64_t layer_count() const { return layers_; }
  Simulation::Resource device() const { return device_; }

 private:
  LayerKind kind(int64_t j) const {
    if (j == 0) return LayerKind::kInput;
    if (j == layers_ - 1) return LayerKind::kOutput;
    return j % 2 == 1 ? LayerKind::kAttention : LayerKind::kMlp;
  }

  Task add(const char* what, Simulation::Resource resource, double seconds, Tasks after) {
    if (seconds <= 0) return simulation_.add(what, {}, after);
    after.push_back(barrier_);
    if (!run_.overlap) after.push_back(previous_);
    const Task task = simulation_.add(what, {{resource, seconds}}, after, layer_);
    previous_ = task;
    step_tasks_.push_back(task);
    return task;
  }
  Task up(const char* what, double bytes, Task after) {
    return add(what, up_, bytes / rates_.to_device, {after});
  }
  Task down(const char* what, double bytes, Task after) {
    return add(what, down_, bytes / rates_.to_host, {after});
  }
  // Work of a copy thread.
  Task host(const char* what, double bytes, Task after) {
    return add(what, host_, bytes / rates_.host_memory, {after});
  }
  // Work of the one Python thread, which waits for it.
  Task host_in_turn(const char* what, double bytes, Task after) {
    thread_ = add(what, host_, bytes / rates_.host_memory, {after, thread_});
    return thread_;
  }
  Task device(const char* what, double seconds, Tasks after) {
    after.push_back(stream_);
    after.push_back(thread_);  // The thread launches it
    stream_ = add(what, device_, seconds, std::move(after));
    return stream_;
  }
  void barrier() {
    step_tasks_.push_back(barrier_);
    barrier_ = simulation_.add("step", {}, step_tasks_);
    step_tasks_.clear();
    thread_ = stream_ = kNone;
  }

  // Reads and writes of one pageable copy.
  static constexpr double kCopied = 2;

  void load_weights(int64_t j) {
    const std::vector<Tensor> tensors = tensors_of(kind(j), run_.shape);
    const std::vector<TensorTier> tiers = tiers_of(tensors, run_.placement.weights);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].matrix) continue;  // Vectors are a ten-thousandth.
      const double bytes = kBytes * tensors[i].elements;
      if (tiers[i] == TensorTier::kDisk) {
        const Task read = add("weights", disk_read_, bytes / rates_.disk_read, {});
        up("weights", bytes, host("weights", kCopied * bytes, read));
      } else if (tiers[i] == TensorTier::kHost) {
        const Task pinned =
            run_.pinned_weights ? kNone : host_in_turn("weights", kCopied * bytes, kNone);
        up("weights", bytes, pinned);
      }
    }
  }

  // Bytes for a micro-batch: keys and values of `rows` positions each.
  double cache_bytes(double rows) const { return 2 * kBytes * hidden_ * rows * batch_; }
  double context() const { return static_cast<double>(run_.prompt_tokens + token_); }

  // Bytes per byte widened into the 32-bit workspace: 2 bytes are read and 4 written.
  static constexpr double kWidened = 3;

  void load_cache(int64_t j) {
    if (token_ == 0 || kind(j) != LayerKind::kAttention) return;
    const PerTier& shares = run_.placement.cache;
    const double bytes = cache_bytes(context());
    if (shares.host > 0) host_in_turn("KV cache", kWidened * shares.host * bytes, kNone);
    if (shares.disk > 0) {
      const double part = shares.disk * bytes;
      const Task read = add("KV cache", disk_read_, part / rates_.disk_read, {});
      host("KV cache", kWidened * part, read);
    }
  }

  // Runs after the step that made the rows.
  void store_cache(int64_t j) {
    if (j < 0 || kind(j) != LayerKind::kAttention) return;
    const PerTier& shares = run_.placement.cache;
    const double bytes = cache_bytes(token_ == 0 ? static_cast<double>(run_.prompt_tokens) : 1);
    const double away = shares.host + shares.disk;
    if (away <= 0) return;
    const Task there = down("KV cache home", away * bytes, kNone);
    const Task copied = host("KV cache home", kCopied * away * bytes, there);
    if (shares.disk > 0) {
      add("KV cache home", disk_write_, shares.disk * bytes / rates_.disk_write, {copied});
    }
  }

  double tokens() const {
    return batch_ * (token_ == 0 ? static_cast<double>(run_.prompt_tokens) : 1);
  }
  double hidden_bytes() const { return kBytes * hidden_ * tokens() * run_.placement.hidden.host; }

  // Copies on the device's own stream. The input embedding takes token numbers, the output gives
  // some.
  void load_hidden(int64_t j) {
    if (j == 0 || j >= layers_) return;
    stream_ = add("activations", up_, hidden_bytes() / rates_.to_device, {stream_});
  }
  void store_hidden(int64_t j) {
    if (j < 0 || j == layers_ - 1) return;
    stream_ = add("activations home", down_, hidden_bytes() / rates_.to_host, {stream_});
  }

  double product_seconds(double weights) const {
    return weights * rates_.seconds_per_weight(static_cast<int64_t>(tokens()));
  }

  void compute(int64_t j) {
    const double square = hidden_ * hidden_;
    switch (kind(j)) {
      case LayerKind::kInput:
        return;  // Only a few rows
      case LayerKind::kMlp:
        device("MLP", product_seconds(2 * hidden_ * static_cast<double>(run_.shape.mlp)), {});
        return;
      case LayerKind::kOutput:
        // Logits at every position, of which only the last one's are used.
        device("head", product_seconds(hidden_ * static_cast<double>(run_.shape.vocabulary)), {});
        return;
      case LayerKind::kAttention:
        break;
    }
    if (token_ == 0) {
      const auto prompt = static_cast<double>(run_.prompt_tokens);
      const double scores = 4 * prompt * prompt * hidden_ * batch_ / rates_.prompt_attention;
      device("attention", product_seconds(4 * square) + scores, {});
      return;
    }
    const PerTier& shares = run_.placement.cache;
    const double bytes = cache_bytes(context());
    device("attention", product_seconds(3 * square), {});
    // K and V are each read and written in another order, and read by their matrix product.
    constexpr double kPasses = 3;
    device("attention", kPasses * shares.device * bytes / rates_.memory, {});
    const double away = shares.host + shares.disk;
    if (away > 0) {
      // Query, key and value go to the host; it computes in 32 bits; the result is uploaded.
      const double row = kBytes * hidden_ * batch_ * away;
      const Task query = down("queries", 3 * row, stream_);
      thread_ = query;
      const Task attended = host_in_turn("host attention", 2 * kPasses * away * bytes, query);
      stream_ = up("host attention", 2 * row, attended);
    }
    device("attention", product_seconds(square), {});
  }

  // One step of generation_loop_overlap_multi_batch, or of its sibling for one micro-batch.
  void step(int64_t j, int64_t k, bool last) {
    layer_ = j;
    const bool ends = k + 1 == batches_;
    // The next micro-batch and the previous one, across layers and tokens.
    const int64_t next = ends ? j + 1 : j, before = k == 0 ? j - 1 : j;
    if (k == 0 && !(last && j + 1 == layers_)) load_weights((j + 1) % layers_);
    load_cache(next);
    if (batches_ > 1) {
      store_hidden(before);
      load_hidden(next);
      compute(j);
    } else {
      load_hidden(j);
      compute(j);
      store_hidden(j);
    }
    store_cache(before);
    barrier();
  }

  // generation_loop_normal
  void step_in_turn(int64_t j, int64_t) {
    layer_ = j;
    load_cache(j);
    load_hidden(j);
    compute(j);
    store_hidden(j);
    store_cache(j);
    barrier();
  }

  Simulation& simulation_;
  const FlexgenRun& run_;
  const MachineRates& rates_;
  const double hidden_, batch_;
  const int64_t batches_, layers_;
  Simulation::Resource device_{}, host_{}, up_{}, down_{}, disk_read_{}, disk_write_{};
  int64_t token_ = 0, layer_ = -1;
  Task barrier_ = kNone;   // End of the previous step
  Task previous_ = kNone;  // Without overlap: the task added last
  Task thread_ = kNone;    // The step's last work of the Python thread
  Task stream_ = kNone;    // The step's last work on the device's stream
  Tasks step_tasks_;
};

// A plan with all that MachineRates need: 16 bits, a discrete device, and every link used.
CostedPlan plan_of(const FlexgenRun& run) {
  const ModelShape& shape = run.shape;
  CostedPlan plan;
  plan.shape = shape;
  plan.format = Format::kF16;
  count_weight_bytes(
      [](const LinearShape& linear) {
        return 2 * static_cast<uint64_t>(linear.outputs * linear.inputs);
      },
      &plan);
  const PerTier bytes = flexgen_weight_bytes(run);
  plan.weights_from_disk = static_cast<uint64_t>(bytes.disk);
  plan.weights_on_host = static_cast<uint64_t>(bytes.host);
  plan.kv_row_bytes = static_cast<uint64_t>(4 * shape.kv_width() * shape.layers);
  plan.kv_sent_bytes = plan.kv_row_bytes;
  plan.kv_on_disk = run.placement.cache.disk;
  plan.kv_on_host = run.placement.cache.host;
  plan.activations_on_host = run.placement.hidden.host;
  plan.micro_batch = {.rows = run.block.micro_batch * run.prompt_tokens,
                      .sequences = run.block.micro_batch};
  plan.discrete = true;
  plan.overlap = run.overlap;
  return plan;
}

Result<MachineRates> rates_of(const FlexgenRun& run, const HardwareProfile& hardware) {
  if (run.shape.family != "opt") {
    return invalid_argument("FlexGen runs OPT only, not the family of " + run.shape.name);
  }
  SPILLWAY_ASSIGN_OR_RETURN(MachineRates rates, MachineRates::of(hardware, plan_of(run)));
  if (rates.host_memory <= 0) {
    return invalid_argument("hardware profile \"" + hardware.name +
                            "\" has no rate of the host's memory (host.memory_read)");
  }
  return rates;
}

// Simulates the first kRun layers of one decode step. The first kSkipped are warm-up, the others
// stand for all layers of all steps.
void add_fewer_batches(Loop* loop, int64_t decode_steps, std::vector<SimulatedStretch>* stretches) {
  constexpr int64_t kRun = 20, kSkipped = 10;
  const int64_t run = std::min(kRun, loop->layer_count());
  const int64_t skipped = std::min(kSkipped, run - 1);
  loop->begin_token(1);
  stretches->push_back({loop->layers(0, skipped, false), 0, false});
  const double each = static_cast<double>(loop->layer_count()) / static_cast<double>(run - skipped);
  stretches->push_back(
      {loop->layers(skipped, run, false), each * static_cast<double>(decode_steps), false});
}

}  // namespace

PerTier flexgen_weight_bytes(const FlexgenRun& run) {
  PerTier bytes;
  const auto add = [&](LayerKind kind, int64_t count) {
    const std::vector<Tensor> tensors = tensors_of(kind, run.shape);
    const std::vector<TensorTier> tiers = tiers_of(tensors, run.placement.weights);
    for (size_t i = 0; i < tensors.size(); ++i) {
      double& tier = tiers[i] == TensorTier::kDisk   ? bytes.disk
                     : tiers[i] == TensorTier::kHost ? bytes.host
                                                     : bytes.device;
      tier += kBytes * tensors[i].elements * static_cast<double>(count);
    }
  };
  add(LayerKind::kInput, 1);
  add(LayerKind::kAttention, run.shape.layers);
  add(LayerKind::kMlp, run.shape.layers);
  add(LayerKind::kOutput, 1);
  return bytes;
}

Result<SimulatedRun> simulate_flexgen(const FlexgenRun& run, const HardwareProfile& hardware) {
  SPILLWAY_ASSIGN_OR_RETURN(const MachineRates rates, rates_of(run, hardware));
  SimulatedRun found;
  found.generated = run.block.sequences() * run.new_tokens;
  Loop loop(&found.timeline, run, rates);
  const int64_t decode = run.new_tokens - 1;
  int64_t steps = std::min(decode, kDecodeStepsMax);
  std::vector<SimulatedStretch> stretches = {{loop.token(0, decode == 0), 1, true}};
  if (run.fewer_batches && decode > 0) {
    add_fewer_batches(&loop, decode, &stretches);
    steps = 1;
  } else {
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t from = 1 + decode * s / steps, to = 1 + decode * (s + 1) / steps;
      const Task end = loop.token((from + to) / 2, s + 1 == steps);
      stretches.push_back({end, static_cast<double>(to - from), false});
    }
  }
  found.sweeps = run.new_tokens;
  found.sweeps_simulated = 1 + steps;
  found.processors = {loop.device()};
  finish_run(stretches, &found);
  return found;
}

Result<SimulatedRun> simulate_our_schedule(const FlexgenRun& run, const HardwareProfile& hardware) {
  SPILLWAY_ASSIGN_OR_RETURN(const MachineRates rates, rates_of(run, hardware));
  CostedPlan plan = plan_of(run);
  plan.host_attention = host_attention_pays(hardware);
  const int64_t sequences = run.block.sequences();
  const std::vector<RequestGroup> groups = {{run.prompt_tokens, run.new_tokens, sequences}};
  const std::vector<KvReservation> reservations = {{0, run.prompt_tokens + run.new_tokens}};
  const auto sweeps = plan_sweeps(groups, reservations,
                                  {.block_sequences = sequences,
                                   .prefill_tokens = sequences * run.prompt_tokens,
                                   .kv_bytes = 0});
  const auto layers = static_cast<double>(run.shape.layers);
  StagingRings rings;
  rings.weights_from_disk = 2 * static_cast<double>(plan.weights_from_disk) / layers;
  rings.weights_to_device = 2 * static_cast<double>(plan.weights_over_link()) / layers;
  const double rows = static_cast<double>(run.block.micro_batch) *
                      static_cast<double>(run.prompt_tokens + run.new_tokens);
  rings.kv_to_device = rings.kv_from_disk =
      2 * rows * static_cast<double>(plan.kv_row_bytes) / layers;
  rings.activations_to_device = 2 * 4 * rows * static_cast<double>(run.shape.hidden);
  return simulate(plan, rates, sweeps, rings);
}

}  // namespace spillway
