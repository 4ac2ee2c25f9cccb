#include "kernels/measure/rates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/clock.h"
#include "kernels/base/processors.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/memory_probe.h"
#include "kernels/input_hadamard.h"
#include "kernels/ops.h"

namespace spillway {

namespace {

constexpr const char* kTrack = "ceiling";  // In a trace
constexpr int kRepeatsMax = 1000;
constexpr int64_t kSmallRow = 4096;
constexpr size_t kSmallRowBytes = kSmallRow * sizeof(float);
constexpr int64_t kOutputsAPanel = 16;  // Of kPanels16, whose scales lie side by side
constexpr size_t kPlaceBytes = 4096;    // Matrices of a pool start at multiples.

// Random numbers, as weights are: a GPU multiplies constant ones with less power, so faster. Finite
// in every format, 4-bit groups included: the upper byte of each half word is between 0x34 and 0x3b
// or that with the sign (in f16 and as a group's scale 0.25 to 1; in bf16 and f32 2^-23 to 2^-7).
// Not a power of two long, so that no rows of a matrix are the same.
std::vector<std::byte> random_numbers() {
  constexpr size_t kBytes = size_t{64} * 16411;
  std::mt19937_64 random(0x5eed);
  std::vector<std::byte> numbers(kBytes);
  for (size_t at = 0; at < kBytes; at += sizeof(uint64_t)) {
    const uint64_t bits = random();
    const uint64_t some = (bits & 0x87ff'87ff'87ff'87ff) +
                          uint64_t{0x3400'3400'3400'3400};  // No carry out of either.
    std::memcpy(numbers.data() + at, &some, sizeof(some));
  }
  return numbers;
}

Status fill(Device& device, const Buffer& buffer) {
  const std::vector<std::byte> some = random_numbers();
  const auto stream = device.new_stream("fill");
  for (size_t at = 0; at < buffer.bytes(); at += some.size()) {
    stream->copy(buffer.data() + at, some.data(), std::min(some.size(), buffer.bytes() - at));
  }
  return stream->record().wait();
}

Result<Buffer> filled(Device& device, size_t bytes) {
  SPILLWAY_ASSIGN_OR_RETURN(Buffer buffer, device.allocate(Memory::kDevice, bytes));
  SPILLWAY_RETURN_IF_ERROR(fill(device, buffer));
  return buffer;
}

// Gives the `places` 4-bit matrices of a pool, one every `step` bytes, scales as convert makes
// them, of which products by 8-bit integers are faster (cpu/gemm_int8.h).
void set_integer_scales(const Device& device, const Buffer& pool, const LinearProbe& probe,
                        size_t places, size_t step) {
  std::array<uint16_t, kOutputsAPanel> scales, minima;
  scales.fill(f32_to_f16(9 * 0x1p-11f));
  minima.fill(f32_to_f16(-68 * 0x1p-11f));
  const MatrixLayout layout = device.matrix_layout(probe.weights);
  SPILLWAY_CHECK(layout == MatrixLayout::kPanels16);
  const int64_t group = format_traits(probe.weights).group;
  for (size_t at = 0; at < places * step; at += step) {
    for (int64_t row = 0; row < probe.outputs; row += kOutputsAPanel) {
      for (int64_t g = 0; g * group < probe.inputs; ++g) {
        const ScaleOffsets found = scale_offsets(layout, probe.weights, probe.inputs, row, g);
        std::memcpy(pool.data() + at + found.scale, scales.data(), sizeof(scales));
        std::memcpy(pool.data() + at + found.minimum, minima.data(), sizeof(minima));
      }
    }
  }
}

// `work` units over the seconds of each run. start() queues the work once, finish() waits for its
// streams.
template <class Start, class Finish>
Result<Rates> sample(double work, const RunLimits& limits, const Start& start,
                     const Finish& finish) {
  const auto timed = [&](int repeats, double* seconds) -> Status {
    const double before = steady_seconds();
    for (int i = 0; i < repeats; ++i) start();
    SPILLWAY_RETURN_IF_ERROR(finish());
    // The clock's resolution: a run of no time would have no rate.
    *seconds = std::max(1e-9, steady_seconds() - before);
    return {};
  };
  double seconds = 0;
  SPILLWAY_RETURN_IF_ERROR(timed(1, &seconds));  // Compiles and warms up.
  int repeats = 1;
  if (seconds < limits.run_seconds) {
    SPILLWAY_RETURN_IF_ERROR(timed(1, &seconds));
    repeats = static_cast<int>(
        std::clamp(std::ceil(limits.run_seconds / seconds), 1.0, static_cast<double>(kRepeatsMax)));
  }
  Rates rates;
  const double begin = steady_seconds();
  for (int run = 0; run < limits.runs_max; ++run) {
    if (run >= limits.runs_min && steady_seconds() - begin > limits.seconds_max) break;
    SPILLWAY_RETURN_IF_ERROR(timed(repeats, &seconds));
    rates.push_back(work * repeats / seconds);
  }
  return rates;
}

template <class Start>
Result<Rates> sample(double work, const RunLimits& limits, Stream& stream, const Start& start) {
  return sample(work, limits, start, [&] { return stream.record().wait(); });
}

}  // namespace

size_t bytes_past_caches(size_t most) {
  constexpr size_t kAlways = size_t{128} << 20;
  constexpr size_t kLeast = size_t{256} << 20, kOfUnknown = size_t{512} << 20;
  const size_t caches = last_level_cache_bytes(allowed_processors());
  const size_t wanted = caches == 0 ? kOfUnknown : std::max(kLeast, 2 * caches);
  return std::min(wanted, std::max(kAlways, most)) >> 20 << 20;
}

Result<Rates> memory_read_rates(Device& device, size_t bytes, const RunLimits& limits) {
  const auto stream = device.new_stream(kTrack);
  SPILLWAY_ASSIGN_OR_RETURN(const Buffer buffer, filled(device, bytes));
  const auto work = static_cast<double>(bytes);
  if (device.discrete()) {
    const size_t half = bytes / 2;
    return sample(work, limits, *stream,
                  [&] { stream->copy(buffer.data(), buffer.data() + half, half); });
  }
  auto& context = *static_cast<cpu::CpuContext*>(stream->native());
  const cpu::ReadPattern fastest = cpu::fastest_pattern(context, buffer.data(), bytes);
  return sample(work, limits, *stream,
                [&] { cpu::read_memory(context, buffer.data(), bytes, fastest); });
}

Result<CopyRates> copy_rates(Device& device, size_t bytes, const RunLimits& limits) {
  SPILLWAY_CHECK(device.discrete());
  const auto up = device.new_stream("ceiling up"), down = device.new_stream("ceiling down");
  SPILLWAY_ASSIGN_OR_RETURN(const Buffer host, device.allocate(Memory::kPinned, 2 * bytes));
  SPILLWAY_ASSIGN_OR_RETURN(const Buffer own, device.allocate(Memory::kDevice, 2 * bytes));
  SPILLWAY_RETURN_IF_ERROR(fill(device, host));
  const auto measure = [&](double count, bool to_device, bool to_host) {
    return sample(
        count * static_cast<double>(bytes), limits,
        [&] {
          if (to_device) up->copy(own.data(), host.data(), bytes);
          if (to_host) down->copy(host.data() + bytes, own.data() + bytes, bytes);
        },
        [&] {
          const Status status = up->record().wait();
          const Status other = down->record().wait();
          return status.ok() ? other : status;
        });
  };
  CopyRates rates;
  SPILLWAY_ASSIGN_OR_RETURN(rates.to_device, measure(1, true, false));
  SPILLWAY_ASSIGN_OR_RETURN(rates.to_host, measure(1, false, true));
  SPILLWAY_ASSIGN_OR_RETURN(rates.both, measure(2, true, true));
  return rates;
}

Result<Rates> small_op_rates(Device& device, const RunLimits& limits) {
  SPILLWAY_CHECK(device.discrete());
  const auto stream = device.new_stream(kTrack);
  SPILLWAY_ASSIGN_OR_RETURN(const Buffer memory, filled(device, 4 * kSmallRowBytes));
  const auto row = [&](size_t i) {
    return dense_matrix(memory.data() + i * kSmallRowBytes, DType::kF32, 1, kSmallRow);
  };
  const auto numbers = [&](size_t i) { return reinterpret_cast<const float*>(row(i).data); };
  return sample(1, limits, *stream, [&] {
    normalize(*stream, {.in = row(0), .weight = numbers(1), .bias = numbers(2), .out = row(3)});
  });
}

Result<Rates> round_trip_rates(Device& device, const RunLimits& limits) {
  SPILLWAY_CHECK(device.discrete());
  const auto compute = device.new_stream(kTrack);
  const auto up = device.new_stream("ceiling up"), down = device.new_stream("ceiling down");
  SPILLWAY_ASSIGN_OR_RETURN(const Buffer host, device.allocate(Memory::kPinned, kSmallRowBytes));
  SPILLWAY_ASSIGN_OR_RETURN(const Buffer own, filled(device, kSmallRowBytes));
  Status failed;
  return sample(
      1, limits,
      [&] {
        down->wait(compute->record());
        down->copy(host.data(), own.data(), kSmallRowBytes);
        const Status status = down->record().wait();
        if (!status.ok()) failed = status;
        up->copy(own.data(), host.data(), kSmallRowBytes);
        compute->wait(up->record());
      },
      [&] { return failed.ok() ? compute->record().wait() : failed; });
}

Result<WeightPool> WeightPool::open(Device& device, size_t bytes) {
  SPILLWAY_ASSIGN_OR_RETURN(Buffer memory, filled(device, bytes));
  return WeightPool(std::move(memory));
}

size_t weight_bytes(const Device& device, const LinearProbe& probe) {
  return packed_bytes(device.matrix_layout(probe.weights), probe.weights, probe.outputs,
                      probe.inputs);
}

Result<Rates> linear_rates(Device& device, const WeightPool& pool, const LinearProbe& probe,
                           const RunLimits& limits) {
  const DType activation = device.activation_dtype(probe.weights);
  const size_t bytes = weight_bytes(device, probe);
  SPILLWAY_CHECK(bytes > 0 && bytes <= pool.memory().bytes());
  const size_t step = round_up(bytes, kPlaceBytes);
  const size_t places = std::max<size_t>(1, pool.memory().bytes() / step);
  if (!device.discrete() && format_traits(probe.weights).bits == 4) {
    set_integer_scales(device, pool.memory(), probe, places, step);
  }
  const auto stream = device.new_stream(kTrack);
  SPILLWAY_ASSIGN_OR_RETURN(
      const Buffer in,
      filled(device, static_cast<size_t>(probe.rows * probe.inputs) * dtype_bytes(activation)));
  SPILLWAY_ASSIGN_OR_RETURN(
      const Buffer out,
      device.allocate(Memory::kDevice,
                      static_cast<size_t>(probe.rows * probe.outputs) * sizeof(float)));
  size_t turn = 0;
  const auto run = [&] {
    const WeightSlab slab{pool.memory().data() + turn++ % places * step, probe.outputs};
    linear(*stream, {.in = dense_matrix(in.data(), activation, probe.rows, probe.inputs),
                     .weight = {std::span(&slab, 1), probe.weights,
                                device.matrix_layout(probe.weights), probe.outputs, probe.inputs,
                                static_cast<int64_t>(round_up(static_cast<uint64_t>(probe.outputs),
                                                              kPanelRowMultiple)),
                                false, takes_hadamard(probe.weights)},
                     .out = dense_matrix(out.data(), DType::kF32, probe.rows, probe.outputs)});
  };
  const double work = 2.0 * static_cast<double>(probe.rows) * static_cast<double>(probe.outputs) *
                      static_cast<double>(probe.inputs);
  return sample(work, limits, *stream, run);
}

namespace {

// Heads of queries, keys and values of a token.
int64_t qkv_heads(const AttentionProbe& probe) {
  return probe.heads + 2 * probe.kv_heads;
}

// Attention of every sequence's `tokens` new tokens after `position` cached ones; `work` is their
// total.
Result<Rates> attention_rates(Device& device, const AttentionProbe& probe, int64_t tokens,
                              int64_t position, double work, const RunLimits& limits) {
  SPILLWAY_CHECK(probe.kv_heads > 0 && probe.heads % probe.kv_heads == 0);
  const KvLayout layout{probe.kv_heads, probe.head_size, probe.kv};
  const DType out_format = device.activation_dtype(probe.kv);
  const int64_t rows = probe.sequences * tokens, width = probe.heads * probe.head_size;
  const int64_t qkv_width = qkv_heads(probe) * probe.head_size;
  const size_t kv_bytes = layout.sequence_bytes(position + tokens);
  const auto stream = device.new_stream(kTrack);
  SPILLWAY_ASSIGN_OR_RETURN(const Buffer qkv,
                            filled(device, static_cast<size_t>(rows * qkv_width) * sizeof(float)));
  SPILLWAY_ASSIGN_OR_RETURN(const Buffer kv,
                            filled(device, kv_bytes * static_cast<size_t>(probe.sequences)));
  SPILLWAY_ASSIGN_OR_RETURN(const Buffer out,
                            device.allocate(Memory::kDevice, static_cast<size_t>(rows * width) *
                                                                 dtype_bytes(out_format)));
  std::vector<AttentionItem> items;
  for (int64_t i = 0; i < probe.sequences; ++i) {
    items.push_back({.first_row = i * tokens,
                     .tokens = tokens,
                     .position = position,
                     .kv = kv.data() + static_cast<size_t>(i) * kv_bytes});
  }
  return sample(work, limits, *stream, [&] {
    attention(*stream, {.qkv = dense_matrix(qkv.data(), DType::kF32, rows, qkv_width),
                        .items = items,
                        .heads = probe.heads,
                        .kv = layout,
                        .out = dense_matrix(out.data(), out_format, rows, width)});
  });
}

}  // namespace

double attended_bytes(const AttentionProbe& probe) {
  const KvLayout layout{probe.kv_heads, probe.head_size, probe.kv};
  return 2.0 * static_cast<double>(layout.row_bytes()) *
         static_cast<double>(probe.sequences * probe.tokens * probe.kv_heads);
}

size_t decode_bytes(const AttentionProbe& probe) {
  const KvLayout layout{probe.kv_heads, probe.head_size, probe.kv};
  const int64_t heads = qkv_heads(probe) + probe.heads;  // The last of outputs; float32 at most
  return layout.sequence_bytes(probe.tokens) + sizeof(AttentionItem) +
         sizeof(float) * static_cast<size_t>(heads * probe.head_size);
}

Result<Rates> prompt_attention_rates(Device& device, const AttentionProbe& probe,
                                     const RunLimits& limits) {
  // Two products, a multiply and an add each, of every query with the keys up to itself.
  const double pairs =
      static_cast<double>(probe.tokens) * static_cast<double>(probe.tokens + 1) / 2;
  const double flops =
      4.0 * static_cast<double>(probe.sequences * probe.heads * probe.head_size) * pairs;
  return attention_rates(device, probe, probe.tokens, 0, flops, limits);
}

Result<Rates> decode_attention_rates(Device& device, const AttentionProbe& probe,
                                     const RunLimits& limits) {
  return attention_rates(device, probe, 1, probe.tokens - 1, attended_bytes(probe), limits);
}

}  // namespace spillway
