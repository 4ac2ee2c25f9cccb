#include "kernels/ceilings.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/probes.h"
#include "kernels/ops.h"

namespace spillway {

namespace {

constexpr int kRuns = 5;
constexpr double kSecondsMax = 1.5;  // Of one measurement, once it ran twice.

// What is measured must stay small: `bench` does it with the model in memory, inside a budget.
// These take at most 128 MiB (the library's product in f32) besides activations, four times the L3
// cache of the machines this was written on, so that a small block still reads its weights from
// memory.
constexpr size_t kMemoryReadBytes = size_t{128} << 20;
constexpr int64_t kMatrixElementsMax = int64_t{32} << 20;

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

// 0x38 in every byte is a small finite number in every format, 4-bit groups included; untouched
// pages would all be one page of zeros.
void fill(Buffer& buffer) {
  std::memset(buffer.data(), 0x38, buffer.bytes());
}

// As many outputs, in whole panels, as the limit allows: more of the same are no faster.
int64_t measured_outputs(int64_t outputs, int64_t inputs) {
  const int64_t most = kMatrixElementsMax / inputs / kPanelRowMultiple * kPanelRowMultiple;
  return std::min(outputs, std::max(kPanelRowMultiple, most));
}

}  // namespace

double measure_memory_read(Device& device) {
  SPILLWAY_CHECK(device.kind() == DeviceKind::kCpu);
  const auto stream = device.new_stream("ceiling");
  auto& context = *static_cast<cpu::CpuContext*>(stream->native());
  Result<Buffer> buffer = device.allocate(Memory::kDevice, kMemoryReadBytes);
  if (!buffer.ok()) return 0;
  fill(buffer.value());
  const double seconds =
      best_seconds([&] { cpu::read_memory(context, buffer->data(), kMemoryReadBytes); });
  return static_cast<double>(kMemoryReadBytes) / seconds;
}

MatrixCeiling measure_matrix(Device& device, DType weights, int64_t rows, int64_t outputs_of_shape,
                             int64_t inputs) {
  const int64_t outputs = measured_outputs(outputs_of_shape, inputs);
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
  fill(in.value());
  fill(w.value());
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
  in = Buffer();
  w = Buffer();
  out = Buffer();  // Both products' operands at once would be too much.
  cpu::LibraryProduct library(activation, rows, outputs, inputs);
  library.run();
  ceiling.library = flops / best_seconds([&] { library.run(); });
  return ceiling;
}

}  // namespace spillway
