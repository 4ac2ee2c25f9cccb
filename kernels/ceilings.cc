#include "kernels/ceilings.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/cpu/probes.h"
#include "kernels/rates.h"

namespace spillway {

namespace {

constexpr RunLimits kLimits;

// What is measured must stay small: `bench` does it with the model in memory, inside a budget.
// These take at most 128 MiB (the library's product in f32) besides activations, four times the L3
// cache of the machines this was written on, so that a small block still reads its weights from
// memory.
constexpr size_t kMemoryReadBytes = size_t{128} << 20;
constexpr int64_t kMatrixElementsMax = int64_t{32} << 20;

// 0 when there was no memory to measure with.
double best_of(const Result<Rates>& rates) {
  return rates.ok() ? *std::max_element(rates.value().begin(), rates.value().end()) : 0;
}

// As many outputs, in whole panels, as the limit allows: more of the same are no faster.
int64_t measured_outputs(int64_t outputs, int64_t inputs) {
  const int64_t most = kMatrixElementsMax / inputs / kPanelRowMultiple * kPanelRowMultiple;
  return std::min(outputs, std::max(kPanelRowMultiple, most));
}

double linear_rate(Device& device, const LinearProbe& probe) {
  const Result<WeightPool> pool = WeightPool::open(device, weight_bytes(device, probe));
  return pool.ok() ? best_of(linear_rates(device, pool.value(), probe, kLimits)) : 0;
}

// oneDNN's FLOP/s.
double library_rate(DType activation, int64_t rows, int64_t outputs, int64_t inputs) {
  cpu::LibraryProduct library(activation, rows, outputs, inputs);
  library.run();
  double best = 1e30;
  const double start = steady_seconds();
  for (int run = 0; run < kLimits.runs_max; ++run) {
    if (run >= kLimits.runs_min && steady_seconds() - start > kLimits.seconds_max) break;
    const double before = steady_seconds();
    library.run();
    best = std::min(best, steady_seconds() - before);
  }
  return 2.0 * static_cast<double>(rows) * static_cast<double>(outputs) *
         static_cast<double>(inputs) / best;
}

}  // namespace

double measure_memory_read(Device& device) {
  return best_of(memory_read_rates(device, kMemoryReadBytes, kLimits));
}

CopyCeiling measure_copies(Device& device) {
  const Result<CopyRates> rates = copy_rates(device, kMemoryReadBytes / 2, kLimits);
  if (!rates.ok()) return {};
  return {best_of(rates.value().to_device), best_of(rates.value().to_host),
          best_of(rates.value().both)};
}

MatrixCeiling measure_matrix(Device& device, DType weights, int64_t rows, int64_t outputs_of_shape,
                             int64_t inputs) {
  const int64_t outputs = measured_outputs(outputs_of_shape, inputs);
  const DType activation = device.activation_dtype(weights);
  MatrixCeiling ceiling;
  ceiling.ours = linear_rate(device, {weights, rows, outputs, inputs});
  if (!device.shares_host_memory()) {
    ceiling.library = weights == activation
                          ? ceiling.ours
                          : linear_rate(device, {activation, rows, outputs, inputs});
    return ceiling;
  }
  // Both products' operands at once would be too much.
  ceiling.library = library_rate(activation, rows, outputs, inputs);
  return ceiling;
}

}  // namespace spillway
