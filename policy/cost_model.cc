#include "policy/cost_model.h"

#include <algorithm>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/linear_shapes.h"

namespace spillway {

namespace {

size_t index(Resource resource) {
  return static_cast<size_t>(resource);
}

// A format, then what stands in for it where it was not measured: the most alike first.
std::array<DType, 5> formats_for(DType format) {
  return {format, format == DType::kBF16 ? DType::kF16 : DType::kBF16, DType::kF16, DType::kF32,
          DType::kQ4};
}

// The rate of requests as the engine makes them, else the best there is.
double disk_rate(const std::vector<DiskFigure>& figures) {
  constexpr uint64_t kBlockBytes = uint64_t{2} << 20;
  constexpr int kDepth = 32;
  double best = 0;
  for (const DiskFigure& figure : figures) {
    if (figure.block_bytes == kBlockBytes && figure.depth == kDepth) return figure.rate.value;
    best = std::max(best, figure.rate.value);
  }
  return best;
}

// The share of the cache over which decode steps are the CPU's.
double attended_by_host(const CostedPlan& plan) {
  return plan.own_memory && plan.host_attention ? plan.kv_on_host : 0;
}

double compute_seconds(const CostedPlan& plan, const MachineRates& rates,
                       const PlannedSweeps& sweeps) {
  double layer_weights = 0, head_weights = 0;
  for (const LinearShape& linear : linear_shapes(plan.shape)) {
    const double weights = static_cast<double>(linear.outputs) *
                           static_cast<double>(linear.inputs) * static_cast<double>(linear.count);
    (linear.head ? head_weights : layer_weights) += weights;
  }
  const double last = layer_elements(plan.shape).rest;  // Behind the last layer's attention
  double seconds = 0;
  for (const PlannedMicroBatch& batch : planned_micro_batches(plan, sweeps)) {
    seconds += (layer_weights - last) * rates.seconds_per_weight(batch.tokens) +
               last * rates.seconds_per_weight(batch.last_rows());
  }
  for (int64_t left = sweeps.decoding + sweeps.prompts; left > 0; left -= plan.head_rows) {
    seconds += head_weights * rates.seconds_per_weight(std::min(left, plan.head_rows));
  }
  const auto width = static_cast<double>(plan.shape.query_width() * plan.shape.layers);
  seconds += 4 * static_cast<double>(sweeps.prompt_pairs) * width / rates.prompt_attention;
  seconds += sweeps.mean_cached_rows() * static_cast<double>(plan.kv_row_bytes) *
             (1 - attended_by_host(plan)) / rates.decode_attention;
  const auto tokens = static_cast<double>(sweeps.decoding + sweeps.prompt_tokens);
  seconds += tokens * static_cast<double>(plan.shape.layers) * activation_traffic(plan.shape) /
             rates.memory;
  return seconds;
}

}  // namespace

std::vector<PlannedMicroBatch> planned_micro_batches(const CostedPlan& plan,
                                                     const PlannedSweeps& sweeps) {
  std::vector<PlannedMicroBatch> batches;
  const auto add = [&](int64_t sequences, int64_t tokens_each, bool prompts) {
    int64_t each = std::max<int64_t>(1, plan.micro_batch_tokens / tokens_each);
    if (plan.micro_batch_sequences > 0) each = std::min(each, plan.micro_batch_sequences);
    for (; sequences > 0; sequences -= each) {
      const int64_t count = std::min(each, sequences);
      batches.push_back({count, count * tokens_each, prompts});
    }
  };
  add(sweeps.decoding, 1, false);
  if (sweeps.prompts > 0) {
    add(sweeps.prompts, std::max<int64_t>(1, sweeps.prompt_tokens / sweeps.prompts), true);
  }
  return batches;
}

LayerElements layer_elements(const ModelShape& shape) {
  LayerElements elements;
  for (const LinearShape& linear : linear_shapes(shape)) {
    if (!linear.in_layer) continue;
    const double all = static_cast<double>(linear.outputs) * static_cast<double>(linear.inputs);
    (linear.role == WeightRole::kQkvWeight ? elements.qkv : elements.rest) += all;
  }
  return elements;
}

// Each product's input is packed (read and written) and its output stored; two norms and two sums
// read and write the residual stream beside that, and attention reads queries, keys and values and
// writes its output (float32). Mostly inside the caches; a few per cent of a prefill.
double activation_traffic(const ModelShape& shape) {
  int64_t elements = 6 * shape.hidden + shape.qkv_width() + shape.query_width();
  for (const LinearShape& linear : linear_shapes(shape)) {
    if (linear.in_layer) elements += 2 * linear.inputs + linear.outputs;
  }
  return 4 * static_cast<double>(elements);
}

std::string_view resource_name(Resource resource) {
  constexpr std::string_view kNames[kResources] = {
      "compute",    "memory",         "host memory",    "disk read",
      "disk write", "host to device", "device to host", "host compute"};
  return kNames[index(resource)];
}

Result<MachineRates> MachineRates::of(const HardwareProfile& hardware, const CostedPlan& plan) {
  const auto lacks = [&](const std::string& what) {
    return invalid_argument("hardware profile \"" + hardware.name + "\" has no " + what +
                            ", which this plan needs; measure one with `spillway profile`");
  };
  MachineRates rates;
  for (const DType format : formats_for(plan.format)) {
    for (const MatrixFigure& figure : hardware.compute.matrix) {
      if (figure.format != format) continue;
      const auto rows = static_cast<double>(figure.rows);
      rates.heights_.push_back({rows, 2 * rows / figure.rate.value});
    }
    if (!rates.heights_.empty()) break;
  }
  if (rates.heights_.empty()) return lacks("rate of matrix products (compute.matrix)");
  // Shapes of one height are averaged.
  auto& heights = rates.heights_;
  std::sort(heights.begin(), heights.end(),
            [](const Height& a, const Height& b) { return a.rows < b.rows; });
  std::vector<Height> merged;
  for (size_t i = 0; i < heights.size();) {
    size_t end = i;
    double sum = 0;
    for (; end < heights.size() && heights[end].rows == heights[i].rows; ++end) {
      sum += heights[end].seconds;
    }
    merged.push_back({heights[i].rows, sum / static_cast<double>(end - i)});
    i = end;
  }
  // More rows never take less time: noise may say so.
  for (size_t i = 1; i < merged.size(); ++i) {
    merged[i].seconds = std::max(merged[i].seconds, merged[i - 1].seconds);
  }
  heights = std::move(merged);

  rates.memory = hardware.compute.memory_read.value;
  if (rates.memory <= 0) return lacks("rate of reading memory (compute.memory_read)");
  rates.host_memory = hardware.host.memory_read.value;
  rates.prompt_attention = hardware.compute.prompt_attention.value;
  if (rates.prompt_attention <= 0) return lacks("rate of attention (compute.prompt_attention)");
  rates.decode_attention = hardware.compute.decode_attention.value;
  if (rates.decode_attention <= 0) return lacks("rate of attention (compute.decode_attention)");
  rates.host_attention = hardware.host.decode_attention.value;
  if (attended_by_host(plan) > 0 && rates.host_attention <= 0) {
    return lacks("rate of attention by the host (host.decode_attention)");
  }
  if (plan.kv_format == DType::kQ4) {
    // Where it was not measured a 4-bit row takes as long as one of 16 bits: what is read less goes
    // into its numbers' expansion.
    constexpr double kQ4OfRow = 0.5625 / 2;
    const double q4 = hardware.compute.decode_attention_q4.value;
    rates.decode_attention = q4 > 0 ? q4 : kQ4OfRow * rates.decode_attention;
    rates.host_attention *= kQ4OfRow;
  }
  rates.disk_read = disk_rate(hardware.disk.read);
  rates.disk_write = disk_rate(hardware.disk.write);
  if (!plan.own_memory && hardware.disk.processor.value > 0) {
    rates.compute_per_disk_byte = 1 / hardware.disk.processor.value;
  }
  const bool disk =
      plan.weights_from_disk > 0 || plan.kv_on_disk > 0 || plan.activations_on_disk > 0;
  if (disk && (rates.disk_read <= 0 || rates.disk_write <= 0)) return lacks("rates of the disk");
  if (hardware.link) {
    rates.to_device = hardware.link->to_device.value;
    rates.to_host = hardware.link->to_host.value;
  }
  if (plan.own_memory && (rates.to_device <= 0 || rates.to_host <= 0)) {
    return lacks("rates of the link to the device");
  }
  return rates;
}

double MachineRates::seconds_per_weight(int64_t rows) const {
  const auto wanted = static_cast<double>(rows);
  const auto above = std::find_if(heights_.begin(), heights_.end(),
                                  [&](const Height& h) { return h.rows >= wanted; });
  if (above == heights_.end()) return heights_.back().seconds * wanted / heights_.back().rows;
  if (above->rows == wanted || above == heights_.begin()) return above->seconds;
  const Height& below = *(above - 1);
  const double share = (wanted - below.rows) / (above->rows - below.rows);
  return below.seconds + share * (above->seconds - below.seconds);
}

bool host_attention_pays(const HardwareProfile& hardware) {
  const double by_host = hardware.host.decode_attention.value;
  return hardware.link && hardware.link->to_device.value > 0 &&
         by_host > hardware.link->to_device.value;
}

ResourceSeconds sweep_cost(const CostedPlan& plan, const MachineRates& rates,
                           const PlannedSweeps& sweeps) {
  ResourceSeconds seconds{};
  seconds[index(Resource::kCompute)] = compute_seconds(plan, rates, sweeps);

  const auto row_bytes = static_cast<double>(plan.kv_row_bytes);
  const double kv_read = sweeps.mean_cached_rows() * row_bytes;
  const double by_host = attended_by_host(plan);
  // Whoever computes reads the weights once a micro-batch.
  const auto passes = static_cast<double>(planned_micro_batches(plan, sweeps).size());
  seconds[index(Resource::kMemory)] =
      (static_cast<double>(plan.weight_bytes) * passes + kv_read * (1 - by_host)) / rates.memory;

  const double prompts_sent = static_cast<double>(sweeps.prompt_rows) * row_bytes;
  const auto steps_sent = static_cast<double>(sweeps.decoding * plan.kv_sent_bytes);
  const double kv_sent = prompts_sent + steps_sent;
  // The residual stream goes and comes once a layer.
  const double stream = 4 * static_cast<double>(plan.shape.hidden * plan.shape.layers) *
                        static_cast<double>(sweeps.decoding + sweeps.prompt_tokens);
  const double disk_read = static_cast<double>(plan.weights_from_disk) + kv_read * plan.kv_on_disk +
                           stream * plan.activations_on_disk;
  const double disk_write = kv_sent * plan.kv_on_disk + stream * plan.activations_on_disk;
  if (disk_read > 0) seconds[index(Resource::kDiskRead)] = disk_read / rates.disk_read;
  if (disk_write > 0) seconds[index(Resource::kDiskWrite)] = disk_write / rates.disk_write;
  seconds[index(Resource::kCompute)] += (disk_read + disk_write) * rates.compute_per_disk_byte;
  if (!plan.own_memory) return seconds;

  const double kv_away = plan.kv_on_disk + plan.kv_on_host;
  const double away = plan.activations_on_disk + plan.activations_on_host;
  // Instead of the cache, queries, keys and values (float32) come down and outputs go up.
  const double steps = static_cast<double>(sweeps.decoding * plan.shape.layers) * by_host;
  const double output_bytes = plan.format == DType::kF32 ? 4 : 2;
  const double up = static_cast<double>(plan.weights_to_device) + kv_read * (kv_away - by_host) +
                    stream * away +
                    steps * output_bytes * static_cast<double>(plan.shape.query_width());
  const double steps_down = plan.kv_returns_whole ? kv_read : steps_sent;
  const double down = prompts_sent * kv_away + steps_down * (kv_away - by_host) + stream * away +
                      steps * 4 * static_cast<double>(plan.shape.qkv_width());
  if (by_host > 0) {
    seconds[index(Resource::kHostCompute)] = kv_read * by_host / rates.host_attention;
  }
  seconds[index(Resource::kHostToDevice)] = up / rates.to_device;
  seconds[index(Resource::kDeviceToHost)] = down / rates.to_host;
  // By DMA on both sides: what the disk brings is written and read again.
  if (rates.host_memory > 0) {
    seconds[index(Resource::kHostMemory)] =
        (up + down + disk_read + disk_write + kv_read * by_host) / rates.host_memory;
  }
  return seconds;
}

namespace {

// Memory is busy while the processor or a link is: it adds nothing of its own.
double one_after_another(const ResourceSeconds& cost) {
  double seconds = std::max(cost[index(Resource::kCompute)], cost[index(Resource::kMemory)]);
  for (const Resource link : {Resource::kDiskRead, Resource::kDiskWrite, Resource::kHostToDevice,
                              Resource::kDeviceToHost, Resource::kHostCompute}) {
    seconds += cost[index(link)];
  }
  return seconds;
}

}  // namespace

Prediction predict(const CostedPlan& plan, const MachineRates& rates,
                   std::span<const PlannedSweeps> sweeps, std::optional<Resource> unlimited) {
  Prediction found;
  ResourceSeconds slowest{};
  size_t last_prefill = 0;
  for (size_t i = 0; i < sweeps.size(); ++i) {
    if (sweeps[i].prompts > 0) last_prefill = i;
  }
  for (size_t i = 0; i < sweeps.size(); ++i) {
    ResourceSeconds cost = sweep_cost(plan, rates, sweeps[i]);
    if (unlimited) cost[index(*unlimited)] = 0;
    const auto count = static_cast<double>(sweeps[i].count);
    const auto most = std::max_element(cost.begin(), cost.end());
    const double seconds = count * (plan.overlap ? *most : one_after_another(cost));
    slowest[static_cast<size_t>(most - cost.begin())] += seconds;
    (i <= last_prefill ? found.prefill_seconds : found.decode_seconds) += seconds;
    for (size_t r = 0; r < kResources; ++r) found.busy[r] += cost[r] * count;
    found.generated += sweeps[i].count * (sweeps[i].decoding + sweeps[i].prompts);
  }
  found.bottleneck =
      static_cast<Resource>(std::max_element(slowest.begin(), slowest.end()) - slowest.begin());
  return found;
}

}  // namespace spillway
