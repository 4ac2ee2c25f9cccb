#include "policy/bound.h"

#include <algorithm>
#include <array>

#include "kernels/base/check.h"
#include "kernels/base/linear_shapes.h"

namespace spillway {

namespace {

// The peak, or the rate of the largest measured height that is not above `rows`, else of the
// smallest.
double rate_of(const Ceilings& ceilings, const LinearShape& shape, int64_t rows) {
  if (ceilings.products > 0) return ceilings.products;
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

// Multiply-adds twice, of all matrices of a shape.
double flops_of(const LinearShape& shape, const SweepWork& work, bool all_last_outputs) {
  const auto tokens = static_cast<double>(work.tokens);
  const auto wanted = static_cast<double>(work.logit_rows);
  const auto outputs = static_cast<double>(shape.outputs);
  const auto last = static_cast<double>(all_last_outputs ? shape.outputs : shape.last_outputs);
  const double rows_by_outputs =
      shape.head ? wanted * outputs * static_cast<double>(shape.count)
                 : tokens * outputs * static_cast<double>(shape.count - 1) + tokens * last +
                       std::min(wanted, tokens) * (outputs - last);
  return 2.0 * rows_by_outputs * static_cast<double>(shape.inputs);
}

double compute_seconds(const BoundModel& model, const Ceilings& ceilings, const SweepWork& work) {
  double seconds = 0;
  for (const LinearShape& shape : linear_shapes(model.shape)) {
    const int64_t rows = shape.head ? work.logit_rows : work.tokens;
    if (rows == 0) continue;
    // The queries of the last layer come from the one matrix whose other outputs are needed anyway.
    const bool queries_too = model.keeps_by_score && shape.last_outputs > 0;
    seconds += flops_of(shape, work, queries_too) / rate_of(ceilings, shape, rows);
  }
  // Two products of head_size multiply-adds for each pair of query and key. In the last layer one
  // row of each prompt, which is left out, or all.
  const bool all_rows = model.keeps_by_score || work.logit_rows >= work.tokens;
  const int64_t layers = model.shape.layers - (all_rows ? 0 : 1);
  const double attention = 4.0 * static_cast<double>(work.prompt_pairs) *
                           static_cast<double>(model.shape.query_width() * layers);
  return seconds + attention / ceilings.attention_flops_per_second;
}

double memory_seconds(const BoundModel& model, const Ceilings& ceilings, const SweepWork& work) {
  const double cached =
      static_cast<double>(model.kv_row_bytes) * static_cast<double>(work.cached_rows);
  const double attended = std::max(0.0, cached - static_cast<double>(work.host_attended_bytes));
  double bytes = 0;
  const std::vector<LinearShape> shapes = linear_shapes(model.shape);
  SPILLWAY_CHECK(model.matrix_bytes.size() == shapes.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    const LinearShape& shape = shapes[i];
    auto matrices = static_cast<double>(shape.count);
    if (work.logit_rows == 0) {  // Nothing behind the last layer's cache is wanted.
      const double outputs = static_cast<double>(shape.outputs);
      matrices = shape.head ? 0 : matrices - 1 + static_cast<double>(shape.last_outputs) / outputs;
    }
    bytes += static_cast<double>(model.matrix_bytes[i]) * matrices;
  }
  const double cache = ceilings.cache_bytes_per_second > 0 ? ceilings.cache_bytes_per_second
                                                           : ceilings.memory_bytes_per_second;
  return bytes / ceilings.memory_bytes_per_second + attended / cache;
}

double link_seconds(uint64_t bytes, double bytes_per_second) {
  return bytes_per_second > 0 ? static_cast<double>(bytes) / bytes_per_second : 0;
}

constexpr size_t kResources = 6;
constexpr const char* kResourceNames[kResources] = {
    "compute", "memory", "disk read", "disk write", "host to device", "device to host"};
using ResourceSeconds = std::array<double, kResources>;

ResourceSeconds seconds_of(const BoundModel& model, const Ceilings& ceilings,
                           const SweepWork& work) {
  return {compute_seconds(model, ceilings, work),
          memory_seconds(model, ceilings, work),
          link_seconds(work.disk_read_bytes, ceilings.disk_read_bytes_per_second),
          link_seconds(work.disk_write_bytes, ceilings.disk_write_bytes_per_second),
          link_seconds(work.to_device_bytes, ceilings.to_device_bytes_per_second),
          link_seconds(work.to_host_bytes, ceilings.to_host_bytes_per_second)};
}

// The largest; compute where it is one of several.
size_t slowest(const ResourceSeconds& seconds) {
  return static_cast<size_t>(std::max_element(seconds.begin(), seconds.end()) - seconds.begin());
}

}  // namespace

Bound bound_of(const BoundModel& model, const Ceilings& ceilings, std::span<const SweepWork> run) {
  SPILLWAY_CHECK(ceilings.attention_flops_per_second > 0 && ceilings.memory_bytes_per_second > 0);
  ResourceSeconds total{}, slowest_seconds{};  // Of each resource; of the sweeps it bounds
  Bound bound;
  for (const SweepWork& work : run) {
    const ResourceSeconds sweep = seconds_of(model, ceilings, work);
    const size_t limit = slowest(sweep);
    slowest_seconds[limit] += sweep[limit];
    bound.seconds += sweep[limit];
    for (size_t i = 0; i < kResources; ++i) total[i] += sweep[i];
  }
  bound.resource = kResourceNames[slowest(slowest_seconds)];
  bound.seconds_any_schedule = total[slowest(total)];
  bound.compute_seconds = total[0];
  bound.memory_seconds = total[1];
  bound.disk_read_seconds = total[2];
  bound.disk_write_seconds = total[3];
  bound.to_device_seconds = total[4];
  bound.to_host_seconds = total[5];
  return bound;
}

}  // namespace spillway
