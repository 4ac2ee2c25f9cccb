#include "policy/cost_model.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/base/linear_shapes.h"

namespace spillway {

namespace {

// The format, followed by its substitutes where it was not measured, most similar first.
std::vector<Format> formats_for(Format format) {
  std::vector<Format> found = {format};
  if (format_traits(format).bits == 8) found.insert(found.end(), {Format::kQ8, Format::kQ8_1});
  if (is_quantized(format)) found.insert(found.end(), {Format::kQ4_1, Format::kQ4});
  found.insert(found.end(), {format == Format::kBF16 ? Format::kF16 : Format::kBF16, Format::kF16,
                             Format::kF32});
  found.insert(found.end(), std::begin(kFormats), std::end(kFormats));
  return found;
}

// The disk's rate for requests of the engine's size and depth, else the best measured.
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

// Bytes per second of the cache when `heads` query heads share each KV head, from the rates of one
// (`own`) and of kQueryHeadsPerKvHead (`shared`): each adds the same time to a byte. That of `own`
// where `shared` was not measured; 0 where `own` was not.
double shared_rate(const Figure& own, const Figure& shared, int64_t heads) {
  if (own.value <= 0 || shared.value <= 0 || heads <= 1) return own.value;
  const double alone = 1 / own.value;
  const double each =
      std::max(0.0, 1 / shared.value - alone) / (HardwareProfile::kQueryHeadsPerKvHead - 1);
  return 1 / (alone + each * static_cast<double>(heads - 1));
}

double compute_seconds(const CostedPlan& plan, const SweepWork& work,
                       const SweepExecution& execution, const SweepRates& rates,
                       double attended_bytes) {
  const std::vector<LinearShape> linears = linear_shapes(plan.shape);
  double seconds = head_seconds(linears, rates, work.logit_rows, execution.head_rows);
  const MicroBatch* before = nullptr;
  ProductSeconds products;
  for (const MicroBatch& batch : execution.micro_batches) {
    const bool alike =
        before != nullptr && before->rows == batch.rows && before->items == batch.items;
    if (!alike) products = product_seconds(linears, rates, batch, execution.last_layer_attends);
    seconds += products.layers - (plan.head ? products.saved_in_last : 0);
    before = &batch;
  }
  // The last layer's prompt attention (one row of each prompt) is neglected unless all rows attend.
  const bool all_rows =
      execution.last_layer_attends || work.logit_rows >= work.tokens() || !plan.head;
  const auto layers = static_cast<double>(plan.shape.layers);
  seconds += (all_rows ? layers : layers - 1) *
             prompt_attention_seconds(plan.shape, rates, work.prompt_pairs);
  if (rates.decode_attention > 0) seconds += attended_bytes / rates.decode_attention;
  if (execution.activations) {
    seconds += layers * activation_seconds(plan.shape, rates, static_cast<double>(work.tokens()));
  }
  seconds += layers * static_cast<double>(execution.micro_batches.size()) *
             small_op_seconds(plan.shape, rates);
  return seconds + (work.disk_read_bytes + work.disk_write_bytes) * rates.compute_per_disk_byte;
}

// Micro-batches with sequences that decode: these come first in a sweep.
double decode_batches(std::span<const MicroBatch> batches, const SweepWork& work) {
  return static_cast<double>(
      std::count_if(batches.begin(), batches.end(), [&](const MicroBatch& batch) {
        return static_cast<int64_t>(batch.first_item) < work.decoding;
      }));
}

// Infinite without a rate, so that no plan is chosen that needs an unmeasured resource.
double seconds_of(double bytes, double rate) {
  return bytes > 0 ? bytes / rate : 0;
}

}  // namespace

void count_weight_bytes(const std::function<uint64_t(const LinearShape&)>& matrix_bytes,
                        CostedPlan* plan) {
  plan->weight_bytes = 0;
  plan->weight_bytes_for_logits = 0;
  for (const LinearShape& linear : linear_shapes(plan->shape)) {
    const uint64_t bytes = matrix_bytes(linear);
    plan->weight_bytes += bytes * static_cast<uint64_t>(linear.count);
    const double cached =  // Share of the last matrix that fills the cache
        static_cast<double>(linear.last_outputs) / static_cast<double>(linear.outputs);
    plan->weight_bytes_for_logits +=
        static_cast<double>(bytes) * (linear.head ? static_cast<double>(linear.count) : 1 - cached);
  }
}

// The input of each matrix product is packed (read and written) and its output stored; two norms
// and two sums also read and write the residual stream, and attention reads queries, keys and
// values and writes its output (float32). Mostly inside the caches; a few per cent of a prefill.
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

ProductSeconds product_seconds(std::span<const LinearShape> linears, const SweepRates& rates,
                               const MicroBatch& batch, bool last_layer_attends) {
  ProductSeconds seconds;
  if (batch.rows == 0) return seconds;
  for (const LinearShape& linear : linears) {
    if (linear.head) continue;
    const auto inputs = static_cast<double>(linear.inputs);
    const double each = rates.seconds_per_weight(linear, batch.rows, batch.rows);
    seconds.layers += each * inputs * static_cast<double>(linear.outputs * linear.count);
    // Queries come from the one matrix whose other outputs are needed anyway.
    const bool whole = last_layer_attends && linear.last_outputs > 0;
    const int64_t fewer = whole ? 0 : linear.outputs - linear.last_outputs;
    if (fewer == 0) continue;
    const double of_wanted =
        rates.seconds_per_weight(linear, static_cast<int64_t>(batch.items), batch.rows);
    seconds.saved_in_last += (each - of_wanted) * inputs * static_cast<double>(fewer);
  }
  return seconds;
}

double head_seconds(std::span<const LinearShape> linears, const SweepRates& rates,
                    int64_t logit_rows, int64_t head_rows) {
  if (logit_rows == 0) return 0;
  const int64_t each = head_rows > 0 ? std::min(head_rows, logit_rows) : logit_rows;
  const int64_t left = logit_rows % each;
  double seconds = 0;
  for (const LinearShape& linear : linears) {
    if (!linear.head) continue;
    double of_weight =
        static_cast<double>(logit_rows / each) * rates.seconds_per_weight(linear, each, each);
    if (left > 0) of_weight += rates.seconds_per_weight(linear, left, left);
    seconds += of_weight * static_cast<double>(linear.outputs * linear.inputs * linear.count);
  }
  return seconds;
}

// Two matrix products of head_size multiply-adds for each pair of query and key.
double prompt_attention_seconds(const ModelShape& shape, const SweepRates& rates, double pairs) {
  return 4 * pairs * static_cast<double>(shape.query_width()) / rates.prompt_attention;
}

double activation_seconds(const ModelShape& shape, const SweepRates& rates, double tokens) {
  return tokens * activation_traffic(shape) / rates.memory;
}

// Two norms and two kernels of attention, and what only some models have. Matrix products are left
// out, since what was measured of them includes what any op takes.
double small_op_seconds(const ModelShape& shape, const SweepRates& rates) {
  constexpr double kAlways = 4;
  const double some = (shape.position == PositionKind::kRotary ? 1 : 0) +
                      (shape.mlp_kind == MlpKind::kGated ? 1 : 0);
  return rates.small_op * (kAlways + some);
}

ResourceSeconds resource_seconds(const CostedPlan& plan, const SweepWork& work,
                                 const SweepExecution& execution, const SweepRates& rates) {
  const double cached = work.cached_rows * static_cast<double>(plan.kv_row_bytes);
  const double attended = std::max(0.0, cached - work.host_attended_bytes);
  double weights = static_cast<double>(plan.weight_bytes);
  if (work.logit_rows == 0) weights -= plan.weight_bytes_for_logits;
  weights *= static_cast<double>(execution.micro_batches.size());

  ResourceSeconds seconds{};
  seconds[index(Resource::kCompute)] = compute_seconds(plan, work, execution, rates, attended);
  seconds[index(Resource::kMemory)] =
      weights / rates.memory + attended / (rates.cache > 0 ? rates.cache : rates.memory);
  seconds[index(Resource::kDiskRead)] = seconds_of(work.disk_read_bytes, rates.disk_read);
  seconds[index(Resource::kDiskWrite)] = seconds_of(work.disk_write_bytes, rates.disk_write);
  seconds[index(Resource::kHostToDevice)] = seconds_of(work.to_device_bytes, rates.to_device);
  seconds[index(Resource::kDeviceToHost)] = seconds_of(work.to_host_bytes, rates.to_host);
  seconds[index(Resource::kHostCompute)] =
      seconds_of(work.host_attended_bytes, rates.host_attention);
  if (work.host_attended_bytes > 0) {
    seconds[index(Resource::kHostCompute)] += static_cast<double>(plan.shape.layers) *
                                              decode_batches(execution.micro_batches, work) *
                                              rates.round_trip;
  }
  if (plan.discrete && rates.host_memory > 0) {
    // DMA on both sides: bytes read from disk are written and read again.
    seconds[index(Resource::kHostMemory)] =
        (work.to_device_bytes + work.to_host_bytes + work.disk_read_bytes + work.disk_write_bytes +
         work.host_attended_bytes) /
        rates.host_memory;
  }
  return seconds;
}

double attended_by_host(const CostedPlan& plan) {
  return plan.host_attention ? plan.kv_on_host : 0;
}

KvTraffic kv_traffic(const CostedPlan& plan, const SweepWork& work) {
  const auto row_bytes = static_cast<double>(plan.kv_row_bytes);
  KvTraffic bytes;
  bytes.read = work.cached_rows * row_bytes;
  bytes.prompts_sent = work.prompt_rows * row_bytes;
  bytes.steps_sent = static_cast<double>(work.decoding) * static_cast<double>(plan.kv_sent_bytes);
  bytes.steps_returned = plan.kv_returns_whole ? bytes.read : bytes.steps_sent;
  return bytes;
}

std::vector<MicroBatch> planned_micro_batches(const CostedPlan& plan, const SweepWork& work) {
  std::vector<MicroBatch> batches;
  add_to_micro_batches(work.decoding, 1, plan.micro_batch, &batches);
  const int64_t parts = work.prompt_parts();
  if (parts == 0) return batches;
  std::vector<MicroBatch> prompts;
  add_to_micro_batches(parts, std::max<int64_t>(1, work.prompt_tokens / parts), plan.micro_batch,
                       &prompts);
  for (MicroBatch& batch : prompts) {
    batch.first_item += static_cast<size_t>(work.decoding);
    batches.push_back(batch);
  }
  return batches;
}

SweepWork planned_work(const CostedPlan& plan, const PlannedSweeps& sweeps) {
  SweepWork work = sweeps.work;
  work.cached_rows = sweeps.mean_cached_rows();
  work.logit_rows = plan.head ? work.decoding + work.prompts : 0;
  const KvTraffic kv = kv_traffic(plan, work);
  const double kv_sent = kv.prompts_sent + kv.steps_sent;
  // The residual stream is uploaded and written back once a layer.
  const double stream = 4 * static_cast<double>(plan.shape.hidden * plan.shape.layers) *
                        static_cast<double>(work.tokens());
  work.disk_read_bytes = static_cast<double>(plan.weights_from_disk) + kv.read * plan.kv_on_disk +
                         stream * plan.activations_on_disk;
  work.disk_write_bytes = kv_sent * plan.kv_on_disk + stream * plan.activations_on_disk;
  const double by_host = attended_by_host(plan);
  const double kv_away = plan.kv_over_link();
  const double away = plan.activations_over_link();
  work.host_attended_bytes = kv.read * by_host;
  // Instead of the cache, queries, keys and values (float32) go to the host and outputs come back.
  const double steps = static_cast<double>(work.decoding * plan.shape.layers) * by_host;
  const double output_bytes = plan.format == Format::kF32 ? 4 : 2;
  work.to_device_bytes = static_cast<double>(plan.weights_over_link()) +
                         kv.read * (kv_away - by_host) + stream * away +
                         steps * output_bytes * static_cast<double>(plan.shape.query_width());
  work.to_host_bytes = kv.prompts_sent * kv_away + kv.steps_returned * (kv_away - by_host) +
                       stream * away + steps * 4 * static_cast<double>(plan.shape.qkv_width());
  return work;
}

namespace {

// The mean sweep of the group, and what it takes.
struct SweepTimes {
  SweepWork work;
  ResourceSeconds cost;
  double decode_batches = 0;
};

SweepTimes sweep_times(const CostedPlan& plan, const MachineRates& rates,
                       const PlannedSweeps& sweeps) {
  SweepTimes times;
  times.work = planned_work(plan, sweeps);
  const std::vector<MicroBatch> batches = planned_micro_batches(plan, times.work);
  times.cost = resource_seconds(plan, times.work,
                                {.micro_batches = batches, .head_rows = plan.head_rows}, rates);
  times.decode_batches = decode_batches(batches, times.work);
  return times;
}

}  // namespace

ResourceSeconds sweep_cost(const CostedPlan& plan, const MachineRates& rates,
                           const PlannedSweeps& sweeps) {
  return sweep_times(plan, rates, sweeps).cost;
}

Result<MachineRates> MachineRates::of(const HardwareProfile& hardware, const CostedPlan& plan) {
  const auto lacks = [&](const std::string& what) {
    return invalid_argument("hardware profile \"" + hardware.name + "\" has no " + what +
                            ", which this plan needs; measure one with `spillway profile`");
  };
  MachineRates rates;
  for (const Format format : formats_for(plan.format)) {
    for (const MatrixFigure& figure : hardware.compute.matrix) {
      if (figure.format != format) continue;
      const auto rows = static_cast<double>(figure.rows);
      rates.heights_.push_back({rows, 2 * rows / figure.rate.value});
    }
    if (!rates.heights_.empty()) break;
  }
  if (rates.heights_.empty()) return lacks("rate of matrix products (compute.matrix)");
  // Shapes with the same batch size are averaged.
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
  // More rows never take less time, though noisy measurements may.
  for (size_t i = 1; i < merged.size(); ++i) {
    merged[i].seconds = std::max(merged[i].seconds, merged[i - 1].seconds);
  }
  heights = std::move(merged);

  rates.memory = hardware.compute.memory_read.value;
  if (rates.memory <= 0) return lacks("rate of reading memory (compute.memory_read)");
  rates.host_memory = hardware.host.memory_read.value;
  rates.prompt_attention = hardware.compute.prompt_attention.value;
  if (rates.prompt_attention <= 0) return lacks("rate of attention (compute.prompt_attention)");
  const HardwareProfile::Compute& compute = hardware.compute;
  const int64_t shared = plan.shape.heads / std::max<int64_t>(plan.shape.kv_heads, 1);
  rates.decode_attention =
      shared_rate(compute.decode_attention, compute.decode_attention_shared, shared);
  if (rates.decode_attention <= 0) return lacks("rate of attention (compute.decode_attention)");
  rates.host_attention = hardware.host.decode_attention.value;
  if (attended_by_host(plan) > 0 && rates.host_attention <= 0) {
    return lacks("rate of attention by the host (host.decode_attention)");
  }
  if (plan.kv_format == Format::kQ8) {
    // If it was not measured, an 8-bit row is read at the rate of a 16-bit one.
    const double q8 =
        shared_rate(compute.decode_attention_q8, compute.decode_attention_q8_shared, shared);
    if (q8 > 0) rates.decode_attention = q8;
  } else if (is_quantized(plan.kv_format)) {
    // If it was not measured, a 4-bit row takes as long as a 16-bit one: the smaller read is offset
    // by the expansion of its numbers.
    const int64_t size = format_traits(plan.kv_format).group;
    const double of_row = static_cast<double>(format_row_bytes(plan.kv_format, size)) /
                          static_cast<double>(format_row_bytes(Format::kF16, size));
    const double q4 =
        shared_rate(compute.decode_attention_q4, compute.decode_attention_q4_shared, shared);
    rates.decode_attention = q4 > 0 ? q4 : of_row * rates.decode_attention;
    rates.host_attention *= of_row;
  }
  rates.disk_read = disk_rate(hardware.disk.read);
  rates.disk_write = disk_rate(hardware.disk.write);
  if (!plan.discrete && hardware.disk.processor.value > 0) {
    rates.compute_per_disk_byte = 1 / hardware.disk.processor.value;
  }
  const bool disk =
      plan.weights_from_disk > 0 || plan.kv_on_disk > 0 || plan.activations_on_disk > 0;
  if (disk && (rates.disk_read <= 0 || rates.disk_write <= 0)) return lacks("rates of the disk");
  const auto seconds_each = [](const Figure& per_second) {
    return per_second.value > 0 ? 1 / per_second.value : 0;
  };
  if (hardware.link) {
    rates.to_device = hardware.link->to_device.value;
    rates.to_host = hardware.link->to_host.value;
    rates.small_op = seconds_each(hardware.compute.small_ops);
    rates.round_trip = seconds_each(hardware.link->round_trips);
  }
  if (plan.discrete && (rates.to_device <= 0 || rates.to_host <= 0)) {
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

namespace {

// Memory is busy only while the processor or a link is, so it adds no time of its own.
double one_after_another(const ResourceSeconds& cost) {
  double seconds = std::max(cost[index(Resource::kCompute)], cost[index(Resource::kMemory)]);
  for (const Resource link : {Resource::kDiskRead, Resource::kDiskWrite, Resource::kHostToDevice,
                              Resource::kDeviceToHost, Resource::kHostCompute}) {
    seconds += cost[index(link)];
  }
  return seconds;
}

// Attention by the CPU runs beside the device's work for other micro-batches, not for its own: at
// the end of a layer the last one's is waited for (Engine::run_layer). So of the shorter of the two
// a micro-batch's part is added to the longer one, and all of it where there is only one.
double with_host_attention(const ResourceSeconds& cost, double batches) {
  const double device = cost[index(Resource::kCompute)];
  const double host = cost[index(Resource::kHostCompute)];
  if (host == 0 || batches == 0) return device;
  return std::max(device, host) + std::min(device, host) / batches;
}

// What a sweep takes whose resources take these.
double together(const CostedPlan& plan, const ResourceSeconds& cost, double batches) {
  if (!plan.overlap) return one_after_another(cost);
  return std::max(*std::max_element(cost.begin(), cost.end()), with_host_attention(cost, batches));
}

}  // namespace

double sweep_seconds(const CostedPlan& plan, const MachineRates& rates,
                     const PlannedSweeps& sweeps) {
  const SweepTimes times = sweep_times(plan, rates, sweeps);
  return together(plan, times.cost, times.decode_batches);
}

Prediction predict(const CostedPlan& plan, const MachineRates& rates,
                   std::span<const PlannedSweeps> sweeps, std::optional<Resource> unlimited) {
  Prediction found;
  ResourceSeconds slowest{};
  size_t last_prefill = 0;
  for (size_t i = 0; i < sweeps.size(); ++i) {
    if (sweeps[i].work.prompts > 0) last_prefill = i;
  }
  for (size_t i = 0; i < sweeps.size(); ++i) {
    const SweepTimes times = sweep_times(plan, rates, sweeps[i]);
    ResourceSeconds cost = times.cost;
    if (unlimited) cost[index(*unlimited)] = 0;
    const auto count = static_cast<double>(sweeps[i].count);
    const auto most = std::max_element(cost.begin(), cost.end());
    const double seconds = count * together(plan, cost, times.decode_batches);
    slowest[static_cast<size_t>(most - cost.begin())] += seconds;
    (i <= last_prefill ? found.prefill_seconds : found.decode_seconds) += seconds;
    for (size_t r = 0; r < kResources; ++r) found.busy[r] += cost[r] * count;
    found.generated += sweeps[i].count * (sweeps[i].work.decoding + sweeps[i].work.prompts);
  }
  found.bottleneck =
      static_cast<Resource>(std::max_element(slowest.begin(), slowest.end()) - slowest.begin());
  return found;
}

Prediction prolonged(const Prediction& shorter, const Prediction& longer, double times) {
  const auto more = [&](double less, double much) { return much + times * (much - less); };
  Prediction found = longer;
  found.prefill_seconds = more(shorter.prefill_seconds, longer.prefill_seconds);
  found.decode_seconds = more(shorter.decode_seconds, longer.decode_seconds);
  found.generated = std::llround(
      more(static_cast<double>(shorter.generated), static_cast<double>(longer.generated)));
  for (size_t r = 0; r < kResources; ++r) found.busy[r] = more(shorter.busy[r], longer.busy[r]);
  return found;
}

}  // namespace spillway
