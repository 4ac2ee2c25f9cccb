#include "server/cli/bench/bench_ceilings.h"

#include <algorithm>
#include <limits>

#include "kernels/base/linear_shapes.h"
#include "kernels/base/units.h"
#include "kernels/decoder_layer.h"
#include "kernels/measure/peaks.h"
#include "scheduler/planning/memory_budget.h"
#include "scheduler/planning/plan_cost.h"

namespace spillway {

namespace {

// Batch sizes above a layer's chunk, for the peak of a discrete device, which is measured by its
// matrix products.
constexpr int64_t kTallRows[] = {4 * kLayerChunkRows, 16 * kLayerChunkRows};

void add_probes(Runtime& runtime, std::span<const int64_t> heights,
                std::vector<LinearProbe>* probes) {
  constexpr int64_t kHeadRowsMax = 64;  // The engine's head runs on at most this many at once.
  for (const LinearShape& linear : linear_shapes(runtime.shape())) {
    for (const int64_t rows : heights) {
      if (linear.head && rows > kHeadRowsMax && rows != heights.front()) continue;
      probes->push_back({runtime.plan().format, rows, linear.outputs, linear.inputs});
    }
  }
}

void keep(const LinearProbe& probe, const MatrixCeiling& ceiling, MeasuredCeilings* found) {
  found->matrix.push_back(ceiling);
  found->rates.matrix.push_back({probe.rows, probe.outputs, probe.inputs, ceiling.best()});
}

Status measure_products(const BenchFlags& flags, Runtime& runtime, size_t host_bytes,
                        MeasuredCeilings* found) {
  std::vector<LinearProbe> probes;
  add_probes(runtime, ceiling_rows(flags, runtime.plan()), &probes);
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<MatrixCeiling> ceilings,
                            measure_matrices(runtime.device(), probes, host_bytes));
  for (size_t i = 0; i < probes.size(); ++i) keep(probes[i], ceilings[i], found);
  return {};
}

// Measures the fastest matrix product of a discrete device at any batch size, as its peak.
Status measure_peak_product(const BenchFlags& flags, Runtime& runtime, MeasuredCeilings* found) {
  double best = 0;
  for (const MatrixCeiling& ceiling : found->matrix) best = std::max(best, ceiling.best());
  const int64_t block = std::min(flags.sequences, runtime.plan().block_sequences());
  for (const int64_t rows : kTallRows) {
    if (rows > block * flags.prompt_tokens) break;
    for (const LinearShape& linear : linear_shapes(runtime.shape())) {
      if (linear.head) continue;
      const LinearProbe probe{runtime.plan().format, rows, linear.outputs, linear.inputs};
      const auto tall = measure_matrices(runtime.device(), std::span(&probe, 1), 0);
      if (tall.status().code() == Code::kCapacity) continue;  // Sizes that fit are enough.
      SPILLWAY_RETURN_IF_ERROR(tall.status());
      best = std::max(best, tall.value().front().best());
    }
  }
  found->products = found->attention = {best, "the best product"};
  return {};
}

// Measures attention of a micro-batch of the run's prompts and of a decode step at the run's end.
Status measure_attention(const BenchFlags& flags, Runtime& runtime, size_t host_bytes,
                         Ceilings* ceilings) {
  const Plan& plan = runtime.plan();
  const ModelShape& shape = runtime.shape();
  const int64_t together = std::max<int64_t>(1, plan.micro_batch_tokens() / flags.prompt_tokens);
  AttentionProbe probe{.kv = plan.kv_format(),
                       .sequences = std::min(together, flags.sequences),
                       .tokens = flags.prompt_tokens,
                       .heads = shape.heads,
                       .kv_heads = shape.kv_heads,
                       .head_size = shape.head_size};
  SPILLWAY_ASSIGN_OR_RETURN(ceilings->prompt_attention,
                            measure_prompt_attention(runtime.device(), probe));
  const int64_t last = kv_positions(flags.prompt_tokens, flags.new_tokens) - 1;
  probe.tokens = resolve(plan.kv_rule(), flags.prompt_tokens, flags.new_tokens).attended(last);
  SPILLWAY_ASSIGN_OR_RETURN(ceilings->cache,
                            measure_decode_attention(runtime.device(), probe, host_bytes));
  return {};
}

}  // namespace

std::vector<int64_t> ceiling_rows(const BenchFlags& flags, const Plan& plan) {
  const int64_t most =
      plan.discrete ? std::min(plan.micro_batch_tokens(), kLayerChunkRows) : kLayerChunkRows;
  const int64_t block = std::min(flags.sequences, plan.block_sequences());
  std::vector<int64_t> heights = {std::min(block, most)};
  const int64_t prefill = std::min(block * flags.prompt_tokens, most);
  if (prefill != heights.front()) heights.push_back(prefill);
  return heights;
}

size_t ceiling_bytes(const Plan& plan) {
  constexpr uint64_t kShare = 4;  // Of what is free: other programs go on.
  uint64_t planned = plan.process_bytes;
  for (const TierBytes& bytes : {plan.weights, plan.kv, plan.activations}) {
    planned += bytes.device + bytes.host;
  }
  const uint64_t left = plan.budget_bytes - std::min(plan.budget_bytes, planned);
  return bytes_past_caches(
      std::min(available_host_bytes() / kShare, left / static_cast<uint64_t>(plan.shape.ranks)));
}

std::string caches_note(size_t host_bytes) {
  const size_t enough = bytes_past_caches(std::numeric_limits<size_t>::max());
  if (host_bytes >= enough) return "";
  return "Memory is measured with " + format_bytes(host_bytes) +
         ", which the caches may hold, where " + format_bytes(enough) +
         " would be past them: its rate may come out too high. The plan leaves no more of "
         "--host-memory, or the machine has no more free";
}

bool uses_disk(const Plan& plan) {
  return plan.weights.disk + plan.kv.disk + plan.activations.disk > 0;
}

Result<MeasuredCeilings> measure_ceilings(const BenchFlags& flags, Runtime& runtime,
                                          size_t host_bytes, bool after_run) {
  Device& device = runtime.device();
  const Plan& plan = runtime.plan();
  MeasuredCeilings found;
  SPILLWAY_RETURN_IF_ERROR(measure_products(flags, runtime, host_bytes, &found));
  SPILLWAY_ASSIGN_OR_RETURN(found.rates.memory, measure_memory_read(device, host_bytes));
  SPILLWAY_RETURN_IF_ERROR(
      measure_attention(flags, runtime, host_bytes, &found.rates).at("measuring attention"));
  if (!device.discrete()) {
    found.peaks = measure_peaks(device);
    found.products = found.peaks.of(product_arithmetic(plan.format));
    found.attention = found.peaks.of_attention(plan.kv_format());
  } else {
    SPILLWAY_RETURN_IF_ERROR(
        measure_peak_product(flags, runtime, &found).at("measuring tall products"));
    Result<CopyCeiling> copies = measure_copies(device);
    if (!copies.ok()) return copies.status().at("measuring the link");
    found.copies = copies.value();
    found.rates.to_device = found.copies.to_device;
    found.rates.to_host = found.copies.to_host;
  }
  if (uses_disk(plan)) {
    SPILLWAY_RETURN_IF_ERROR(
        measure_disk_ceilings(device, plan, after_run, &found).at("measuring the disk"));
    // Ranks read and write at the same time.
    found.rates.disk_read /= static_cast<double>(plan.shape.ranks);
    found.rates.disk_write /= static_cast<double>(plan.shape.ranks);
  }
  return found;
}

void hold_against_bound(Runtime& runtime, BenchResult* result) {
  const Plan& plan = runtime.plan();
  const CostedPlan costed = bounded_plan(plan);
  const bool keeps_by_score = plan.kv_rule().kind == KvRuleKind::kH2o;
  const Ceilings hardware = result->ceilings.hardware();
  const auto bounds = [&](const std::vector<LoggedSweep>& sweeps) {
    const std::vector<SweepWork> work(sweeps.begin(), sweeps.end());
    return Bounds{bound_of(costed, keeps_by_score, hardware, work),
                  bound_of(costed, keeps_by_score, result->ceilings.rates, work)};
  };
  result->total = bounds(result->sweeps);
  result->prefill = bounds(prefill_sweeps(result->sweeps));
  result->decode = bounds(decode_sweeps(result->sweeps));
  result->steady = bounds(steady_sweeps(result->sweeps));
}

}  // namespace spillway
