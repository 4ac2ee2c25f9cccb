#include "server/commands/bench_ceilings.h"

#include <fcntl.h>

#include <algorithm>

#include "kernels/decoder_layer.h"
#include "kernels/weight_layout.h"
#include "offload/disk_speed.h"
#include "offload/spill_file.h"

namespace spillway {

namespace {

Status measure_products(const BenchFlags& flags, Runtime& runtime, MeasuredCeilings* found) {
  constexpr int64_t kHeadRowsMax = 64;  // The engine's head runs on at most this many at once.
  const bool own_memory = !runtime.device().shares_host_memory();
  const std::vector<int64_t> heights = ceiling_heights(flags, runtime.plan(), own_memory);
  std::vector<LinearProbe> probes;
  for (const LinearShape& linear : linear_shapes(runtime.shape())) {
    for (int64_t rows : heights) {
      if (linear.head && rows > kHeadRowsMax && rows != heights.front()) continue;
      probes.push_back({runtime.plan().format, rows, linear.outputs, linear.inputs});
    }
  }
  SPILLWAY_ASSIGN_OR_RETURN(found->matrix, measure_matrices(runtime.device(), probes));
  double best = 0;
  for (size_t i = 0; i < probes.size(); ++i) {
    const double rate = found->matrix[i].best();
    found->rates.matrix.push_back({probes[i].rows, probes[i].outputs, probes[i].inputs, rate});
    best = std::max(best, rate);
  }
  found->rates.attention_flops_per_second = best;
  return {};
}

// A micro-batch of the run's prompts. On a device whose products run on units of their own the best
// of them says nothing about attention.
Status measure_attention(const BenchFlags& flags, Runtime& runtime, Ceilings* ceilings) {
  const RuntimePlan& plan = runtime.plan();
  const ModelShape& shape = runtime.shape();
  const int64_t together = std::max<int64_t>(1, plan.micro_batch_tokens / flags.prompt_tokens);
  SPILLWAY_ASSIGN_OR_RETURN(
      ceilings->attention_flops_per_second,
      measure_prompt_attention(runtime.device(), {.kv = plan.kv_format,
                                                  .sequences = std::min(together, flags.sequences),
                                                  .tokens = flags.prompt_tokens,
                                                  .heads = shape.heads,
                                                  .head_size = shape.head_size}));
  return {};
}

constexpr size_t kProbeDepth = 32;  // Requests under way
constexpr DiskProbe kProbe{.bytes_max = uint64_t{4} << 30, .seconds_max = 1};
// The best counts: shared disks stall now and then (one probe of 2 s gave 0.23 GB/s where the run
// after it read 2.3).
constexpr int kProbes = 3;
constexpr uint64_t kSpillBytesMax = uint64_t{512} << 20;

// The best rate of a few probes.
template <class Probe>
Result<double> best_rate(const Probe& probe) {
  double best = 0;
  for (int i = 0; i < kProbes; ++i) {
    const Result<DiskSpeed> speed = probe();
    if (!speed.ok()) return speed.status();
    best = std::max(best, speed.value().bytes_per_second());
  }
  return best;
}

// Whole passes over the cache that a run left on disk, which is what the run read: another file
// lies elsewhere, and a small new one is in the host's cache on many virtual machines (4 GiB gave
// 0.9 GB/s where 512 MiB gave 3.0). Nothing when the run wrote too little.
Status measure_own_file(DiskMeter& meter, const RuntimePlan& plan, MeasuredCeilings* found) {
  SPILLWAY_ASSIGN_OR_RETURN(const File file, File::open(plan.kv_file, O_RDONLY | O_DIRECT));
  const DiskProbe pass{.bytes_max = plan.kv.disk, .seconds_max = 5, .data_only = true};
  const Result<double> rate = best_rate([&] { return meter.read(file, pass, kProbeDepth); });
  if (!rate.ok()) return rate.status().code() == Code::kInvalidArgument ? Status() : rate.status();
  found->rates.disk_read_bytes_per_second = rate.value();
  found->of_own_file = true;
  return {};
}

Status measure_disk(Device& device, const RuntimePlan& plan, bool after_run,
                    MeasuredCeilings* found) {
  Ceilings* const ceilings = &found->rates;
  SPILLWAY_ASSIGN_OR_RETURN(DiskMeter meter,
                            DiskMeter::open(device, kProbeDepth * kProbe.request_bytes));
  if (plan.weights.disk > 0) {
    SPILLWAY_ASSIGN_OR_RETURN(const File file, File::open(plan.weights_file, O_RDONLY | O_DIRECT));
    SPILLWAY_ASSIGN_OR_RETURN(ceilings->disk_read_bytes_per_second,
                              best_rate([&] { return meter.read(file, kProbe, kProbeDepth); }));
  }
  const uint64_t spilled = plan.kv.disk + plan.activations.disk;
  if (spilled == 0) return {};
  SPILLWAY_ASSIGN_OR_RETURN(const SpillDirectory directory, SpillDirectory::open(plan.disk_dir));
  const uint64_t bytes = std::clamp(spilled, uint64_t{kProbe.request_bytes}, kSpillBytesMax);
  SPILLWAY_ASSIGN_OR_RETURN(const File file, directory.create(bytes));
  // Not the first: then a new file's blocks are only made.
  SPILLWAY_RETURN_IF_ERROR(meter.write(file, kProbe, kProbeDepth).status());
  SPILLWAY_ASSIGN_OR_RETURN(ceilings->disk_write_bytes_per_second,
                            best_rate([&] { return meter.write(file, kProbe, kProbeDepth); }));
  if (plan.weights.disk > 0) return {};
  if (after_run && plan.kv.disk > 0) {
    SPILLWAY_RETURN_IF_ERROR(measure_own_file(meter, plan, found));
    if (found->of_own_file) return {};
  }
  SPILLWAY_ASSIGN_OR_RETURN(ceilings->disk_read_bytes_per_second,
                            best_rate([&] { return meter.read(file, kProbe, kProbeDepth); }));
  return {};
}

}  // namespace

std::vector<int64_t> ceiling_heights(const BenchFlags& flags, const RuntimePlan& plan,
                                     bool own_memory) {
  const int64_t most =
      own_memory ? std::min(plan.micro_batch_tokens, kLayerChunkRows) : kLayerChunkRows;
  const int64_t block = std::min(flags.sequences, plan.block_sequences);
  std::vector<int64_t> heights = {std::min(block, most)};
  const int64_t prefill = std::min(block * flags.prompt_tokens, most);
  if (prefill != heights.front()) heights.push_back(prefill);
  return heights;
}

bool uses_disk(const RuntimePlan& plan) {
  return plan.weights.disk + plan.kv.disk + plan.activations.disk > 0;
}

Result<MeasuredCeilings> measure_ceilings(const BenchFlags& flags, Runtime& runtime,
                                          bool after_run) {
  Device& device = runtime.device();
  MeasuredCeilings found;
  SPILLWAY_RETURN_IF_ERROR(measure_products(flags, runtime, &found));
  SPILLWAY_ASSIGN_OR_RETURN(found.rates.memory_bytes_per_second, measure_memory_read(device));
  if (!device.shares_host_memory()) {
    SPILLWAY_RETURN_IF_ERROR(
        measure_attention(flags, runtime, &found.rates).at("measuring prompt attention"));
    Result<CopyCeiling> copies = measure_copies(device);
    if (!copies.ok()) return copies.status().at("measuring the link");
    found.copies = copies.value();
    found.rates.to_device_bytes_per_second = found.copies.to_device;
    found.rates.to_host_bytes_per_second = found.copies.to_host;
  }
  if (uses_disk(runtime.plan())) {
    SPILLWAY_RETURN_IF_ERROR(
        measure_disk(device, runtime.plan(), after_run, &found).at("measuring the disk"));
  }
  return found;
}

void hold_against_bound(Runtime& runtime, BenchResult* result) {
  const ModelShape& shape = runtime.shape();
  const RuntimePlan& plan = runtime.plan();
  BoundModel model{shape,
                   {},
                   kv_layout(shape, plan.kv_format).row_bytes() * 2 *
                       static_cast<size_t>(shape.kv_heads * shape.layers)};
  const MatrixLayout layout = runtime.device().matrix_layout(plan.format);
  for (const LinearShape& linear : linear_shapes(shape)) {
    model.matrix_bytes.push_back(packed_bytes(layout, plan.format, linear.outputs, linear.inputs));
  }
  result->bound = bound_of(model, result->ceilings.rates, result->sweeps);
  result->prefill_bound = bound_of(model, result->ceilings.rates, prefill_sweeps(result->sweeps));
  result->decode_bound = bound_of(model, result->ceilings.rates, decode_sweeps(result->sweeps));
}

}  // namespace spillway
