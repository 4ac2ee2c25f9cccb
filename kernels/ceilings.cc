#include "kernels/ceilings.h"

#include <algorithm>
#include <cstring>
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
void fill(Device& device, Buffer& buffer) {
  if (device.shares_host_memory()) {
    std::memset(buffer.data(), 0x38, buffer.bytes());
    return;
  }
  const std::vector<std::byte> some(size_t{1} << 20, std::byte{0x38});
  const auto stream = device.new_stream("fill");
  for (size_t at = 0; at < buffer.bytes(); at += some.size()) {
    stream->copy(buffer.data() + at, some.data(), std::min(some.size(), buffer.bytes() - at));
  }
  (void)stream->record().wait().ok();
}

void finish(Stream& stream) {
  (void)stream.record().wait().ok();
}

// As many outputs, in whole panels, as the limit allows: more of the same are no faster.
int64_t measured_outputs(int64_t outputs, int64_t inputs) {
  const int64_t most = kMatrixElementsMax / inputs / kPanelRowMultiple * kPanelRowMultiple;
  return std::min(outputs, std::max(kPanelRowMultiple, most));
}

}  // namespace

double measure_memory_read(Device& device) {
  const auto stream = device.new_stream("ceiling");
  Result<Buffer> buffer = device.allocate(Memory::kDevice, kMemoryReadBytes);
  if (!buffer.ok()) return 0;
  fill(device, buffer.value());
  if (!device.shares_host_memory()) {
    // Half of it into the other half.
    const size_t half = kMemoryReadBytes / 2;
    const double seconds = best_seconds([&] {
      stream->copy(buffer->data(), buffer->data() + half, half);
      finish(*stream);
    });
    return static_cast<double>(kMemoryReadBytes) / seconds;
  }
  auto& context = *static_cast<cpu::CpuContext*>(stream->native());
  const double seconds =
      best_seconds([&] { cpu::read_memory(context, buffer->data(), kMemoryReadBytes); });
  return static_cast<double>(kMemoryReadBytes) / seconds;
}

CopyCeiling measure_copies(Device& device) {
  constexpr size_t bytes = kMemoryReadBytes / 2;
  SPILLWAY_CHECK(!device.shares_host_memory());
  const auto up = device.new_stream("ceiling up"), down = device.new_stream("ceiling down");
  Result<Buffer> host = device.allocate(Memory::kPinned, 2 * bytes);
  Result<Buffer> own = device.allocate(Memory::kDevice, 2 * bytes);
  if (!host.ok() || !own.ok()) return {};
  std::memset(host->data(), 0x38, host->bytes());
  const auto rate = [&](double count, bool to_device, bool to_host) {
    return count * static_cast<double>(bytes) / best_seconds([&] {
             if (to_device) up->copy(own->data(), host->data(), bytes);
             if (to_host) down->copy(host->data() + bytes, own->data() + bytes, bytes);
             finish(*up);
             finish(*down);
           });
  };
  return {rate(1, true, false), rate(1, false, true), rate(2, true, true)};
}

namespace {

// Our linear op's rate with matrices in `weights` format and the layout that the device wants.
double linear_rate(Device& device, DType weights, DType activation, int64_t rows, int64_t outputs,
                   int64_t inputs) {
  const MatrixLayout layout = device.matrix_layout(weights);
  const auto stream = device.new_stream("ceiling");
  Result<Buffer> in = device.allocate(Memory::kDevice,
                                      static_cast<size_t>(rows * inputs) * dtype_bytes(activation));
  Result<Buffer> w =
      device.allocate(Memory::kDevice, packed_bytes(layout, weights, outputs, inputs));
  Result<Buffer> out =
      device.allocate(Memory::kDevice, static_cast<size_t>(rows * outputs) * sizeof(float));
  if (!in.ok() || !w.ok() || !out.ok()) return 0;
  fill(device, in.value());
  fill(device, w.value());
  const WeightSlab slab{w->data(), outputs};
  const LinearArgs args{.in = dense_matrix(in->data(), activation, rows, inputs),
                        .weight = {std::span(&slab, 1), weights, layout, outputs, inputs,
                                   static_cast<int64_t>((outputs + kPanelRowMultiple - 1) /
                                                        kPanelRowMultiple * kPanelRowMultiple)},
                        .out = dense_matrix(out->data(), DType::kF32, rows, outputs)};
  const auto run = [&] {
    linear(*stream, args);
    finish(*stream);
  };
  run();  // Compiles and warms up.
  return 2.0 * static_cast<double>(rows) * static_cast<double>(outputs) *
         static_cast<double>(inputs) / best_seconds(run);
}

}  // namespace

MatrixCeiling measure_matrix(Device& device, DType weights, int64_t rows, int64_t outputs_of_shape,
                             int64_t inputs) {
  const int64_t outputs = measured_outputs(outputs_of_shape, inputs);
  const DType activation = device.activation_dtype(weights);
  MatrixCeiling ceiling;
  ceiling.ours = linear_rate(device, weights, activation, rows, outputs, inputs);
  if (!device.shares_host_memory()) {
    ceiling.library = weights == activation
                          ? ceiling.ours
                          : linear_rate(device, activation, activation, rows, outputs, inputs);
    return ceiling;
  }
  // Both products' operands at once would be too much.
  cpu::LibraryProduct library(activation, rows, outputs, inputs);
  library.run();
  ceiling.library = 2.0 * static_cast<double>(rows) * static_cast<double>(outputs) *
                    static_cast<double>(inputs) / best_seconds([&] { library.run(); });
  return ceiling;
}

}  // namespace spillway
