#include "policy/bound.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace spillway {

namespace {

// The rate of the largest measured height that is not above `rows`, else of the smallest.
double rate_of(const Ceilings& ceilings, const LinearShape& shape, int64_t rows) {
  const MatrixRate* best = nullptr;
  for (const MatrixRate& rate : ceilings.matrix) {
    if (rate.outputs != shape.outputs || rate.inputs != shape.inputs) continue;
    const bool closer = best == nullptr || (rate.rows <= rows && rate.rows > best->rows) ||
                        (best->rows > rows && rate.rows < best->rows);
    if (closer) best = &rate;
  }
  SPILLWAY_CHECK(best != nullptr && best->flops_per_second > 0);
  return best->flops_per_second;
}

double compute_seconds(const BoundModel& model, const Ceilings& ceilings, const SweepWork& work) {
  double seconds = 0;
  for (const LinearShape& shape : linear_shapes(model.shape)) {
    const int64_t rows = shape.head ? work.logit_rows : work.tokens;
    if (rows == 0) continue;
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(shape.outputs) *
                         static_cast<double>(shape.inputs) * static_cast<double>(shape.count);
    seconds += flops / rate_of(ceilings, shape, rows);
  }
  // Two products of head_size multiply-adds for each pair of query and key.
  const double attention = 4.0 * static_cast<double>(work.prompt_pairs) *
                           static_cast<double>(model.shape.query_width() * model.shape.layers);
  return seconds + attention / ceilings.attention_flops_per_second;
}

double memory_seconds(const BoundModel& model, const Ceilings& ceilings, const SweepWork& work) {
  double bytes = static_cast<double>(model.kv_row_bytes) * static_cast<double>(work.cached_rows);
  for (const LinearShape& shape : linear_shapes(model.shape)) {
    if (shape.head && work.logit_rows == 0) continue;
    bytes += static_cast<double>(dtype_bytes(model.weights)) *
             static_cast<double>(shape.outputs * shape.inputs * shape.count);
  }
  return bytes / ceilings.memory_bytes_per_second;
}

}  // namespace

std::vector<LinearShape> linear_shapes(const ModelShape& shape) {
  const int64_t up = shape.mlp_kind == MlpKind::kGated ? 2 * shape.mlp : shape.mlp;
  std::vector<LinearShape> shapes = {
      {shape.qkv_width(), shape.hidden, shape.layers},
      {shape.hidden, shape.query_width(), shape.layers},
      {up, shape.hidden, shape.layers},
      {shape.hidden, shape.mlp, shape.layers},
      {shape.vocabulary, shape.embedding, 1, true},
  };
  if (shape.embedding != shape.hidden) {
    shapes.push_back({shape.hidden, shape.embedding, 1});
    shapes.push_back({shape.embedding, shape.hidden, 1, true});
  }
  return shapes;
}

Bound bound_of(const BoundModel& model, const Ceilings& ceilings, std::span<const SweepWork> run) {
  SPILLWAY_CHECK(ceilings.attention_flops_per_second > 0 && ceilings.memory_bytes_per_second > 0);
  Bound bound;
  double compute_longest = 0, memory_longest = 0;
  for (const SweepWork& work : run) {
    const double compute = compute_seconds(model, ceilings, work);
    const double memory = memory_seconds(model, ceilings, work);
    (compute >= memory ? compute_longest : memory_longest) += std::max(compute, memory);
    bound.compute_seconds += compute;
    bound.memory_seconds += memory;
  }
  bound.seconds = compute_longest + memory_longest;
  bound.resource = compute_longest >= memory_longest ? "compute" : "memory";
  bound.seconds_any_schedule = std::max(bound.compute_seconds, bound.memory_seconds);
  return bound;
}

}  // namespace spillway
