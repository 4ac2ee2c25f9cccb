#include "kernels/ceilings.h"

#include <algorithm>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/probes.h"
#include "kernels/ops.h"

namespace spillway {

namespace {

constexpr int kRuns = 5;
constexpr double kSecondsMax = 1.5;  // Of one measurement, once it ran twice.

// The shortest of several runs.
template <class Body>
double best_seconds(const Body& body) {
  double best = 1e30;
  const double start = steady_seconds();
  for (int run = 0; run < kRuns; ++run) {
    if (run >= 2 && steady_seconds() - start > kSecondsMax) break;
    const double before = steady_seconds();
    body();
    best = std::min(best, steady_seconds() - before);
  }
  return best;
}

// Small finite numbers in any float format; their values do not matter to the speed.
void fill(Buffer& buffer, DType dtype) {
  constexpr float kValue = 0.5f;
  const size_t element = dtype_bytes(dtype);
  std::byte pattern[4];
  convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(&kValue), dtype, pattern, 1);
  for (size_t i = 0; i + element <= buffer.bytes(); i += element) {
    std::copy_n(pattern, element, buffer.data() + i);
  }
}

}  // namespace

double measure_memory_read(Device& device) {
  SPILLWAY_CHECK(device.kind() == DeviceKind::kCpu);
  const auto stream = device.new_stream("ceiling");
  auto& context = *static_cast<cpu::CpuContext*>(stream->native());
  constexpr size_t kBytes = size_t{512} << 20;  // Many times the largest L3 cache.
  Result<Buffer> buffer = device.allocate(Memory::kDevice, kBytes);
  if (!buffer.ok()) return 0;
  fill(buffer.value(), DType::kF32);  // Untouched pages would all be one page of zeros.
  const double seconds = best_seconds([&] { cpu::read_memory(context, buffer->data(), kBytes); });
  return static_cast<double>(kBytes) / seconds;
}

MatrixCeiling measure_matrix(Device& device, DType weights, int64_t rows, int64_t outputs,
                             int64_t inputs) {
  const DType activation = device.activation_dtype(weights);
  const MatrixLayout layout = device.matrix_layout(weights);
  const auto stream = device.new_stream("ceiling");
  Result<Buffer> in = device.allocate(Memory::kDevice,
                                      static_cast<size_t>(rows * inputs) * dtype_bytes(activation));
  Result<Buffer> w =
      device.allocate(Memory::kDevice, packed_bytes(layout, weights, outputs, inputs));
  Result<Buffer> out =
      device.allocate(Memory::kDevice, static_cast<size_t>(rows * outputs) * sizeof(float));
  if (!in.ok() || !w.ok() || !out.ok()) return {};
  fill(in.value(), activation);
  fill(w.value(), weights);
  const WeightSlab slab{w->data(), outputs};
  const LinearArgs args{.in = dense_matrix(in->data(), activation, rows, inputs),
                        .weight = {std::span(&slab, 1), weights, layout, outputs, inputs,
                                   static_cast<int64_t>((outputs + kPanelRowMultiple - 1) /
                                                        kPanelRowMultiple * kPanelRowMultiple)},
                        .out = dense_matrix(out->data(), DType::kF32, rows, outputs)};
  const double flops =
      2.0 * static_cast<double>(rows) * static_cast<double>(outputs) * static_cast<double>(inputs);
  MatrixCeiling ceiling;
  linear(*stream, args);  // Compiles and warms up.
  ceiling.ours = flops / best_seconds([&] { linear(*stream, args); });
  if (device.kind() != DeviceKind::kCpu) return ceiling;
  w = Buffer();
  cpu::LibraryProduct library(activation, rows, outputs, inputs);
  library.run();
  ceiling.library = flops / best_seconds([&] { library.run(); });
  return ceiling;
}

}  // namespace spillway
