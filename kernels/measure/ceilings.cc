#include "kernels/measure/ceilings.h"

#include <algorithm>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "kernels/cpu/memory_probe.h"

namespace spillway {

namespace {

constexpr int64_t kMatrixElementsMax = int64_t{32} << 20;  // On the CPU
constexpr size_t kPartBytes = size_t{128} << 20;           // At most; and of both copies

// Discrete devices: ten times the 50 MiB of an H200's L2 cache, where that is free; and the bytes
// that products take besides matrices, input and output.
constexpr size_t kOwnPoolBytes = size_t{512} << 20;
constexpr size_t kOwnPoolBytesMin = size_t{128} << 20;
constexpr size_t kLibraryBytes = size_t{96}
                                 << 20;  // cuBLAS's workspaces of 32 MiB, and small blocks

// Starting and awaiting work on a discrete device's stream takes microseconds.
RunLimits limits_of(const Device& device) {
  RunLimits limits;
  if (device.discrete()) limits.run_seconds = 0.005;
  return limits;
}

Result<double> best_of(const Result<Rates>& rates) {
  if (!rates.ok()) return rates.status();
  return *std::max_element(rates.value().begin(), rates.value().end());
}

Status no_room(const Device& device, const std::string& what, size_t bytes, size_t left) {
  return {Code::kCapacity, "measuring " + what + " takes " + format_bytes(bytes) +
                               " of the memory of " + std::string(device.name()) + ", where " +
                               format_bytes(left) +
                               " are left beside the model; give it less (--device-memory, "
                               "--weights) or end other programs"};
}

// As many outputs, in whole panels, as the limit allows: more outputs are no faster on a CPU.
LinearProbe part_of(LinearProbe probe) {
  const int64_t most = kMatrixElementsMax / probe.inputs / kPanelRowMultiple * kPanelRowMultiple;
  probe.outputs = std::min(probe.outputs, std::max(kPanelRowMultiple, most));
  return probe;
}

Result<std::vector<MatrixCeiling>> measure_on_cpu(Device& device,
                                                  std::span<const LinearProbe> probes,
                                                  size_t host_bytes) {
  size_t largest = host_bytes;
  for (const LinearProbe& probe : probes) {
    largest = std::max(largest, weight_bytes(device, part_of(probe)));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const WeightPool pool, WeightPool::open(device, largest));
  std::vector<MatrixCeiling> ceilings;
  for (const LinearProbe& probe : probes) {
    MatrixCeiling& ceiling = ceilings.emplace_back();
    SPILLWAY_ASSIGN_OR_RETURN(
        ceiling.ours, best_of(linear_rates(device, pool, part_of(probe), limits_of(device))));
  }
  return ceilings;
}

// The probe with weights in the format of the activations: the product that the library computes.
LinearProbe plain(const Device& device, LinearProbe probe) {
  probe.weights = plain_format(device.activation_dtype(probe.weights));
  return probe;
}

// Bytes of a product beside its matrix: input, output, and expanded 4-bit weights.
size_t bytes_beside(const Device& device, const LinearProbe& probe) {
  const LinearProbe wide = plain(device, probe);
  const size_t in =
      static_cast<size_t>(probe.rows * probe.inputs) * dtype_bytes(element_of(wide.weights));
  const size_t out = static_cast<size_t>(probe.rows * probe.outputs) * sizeof(float);
  const bool expands = probe.weights != wide.weights;
  return in + out + (expands ? weight_bytes(device, wide) : 0) + kLibraryBytes;
}

// A pool of consecutive matrices, larger than the caches.
Result<WeightPool> own_pool(Device& device, std::span<const LinearProbe> probes) {
  size_t largest = 0, beside = 0;
  for (const LinearProbe& probe : probes) {
    largest = std::max(
        {largest, weight_bytes(device, probe), weight_bytes(device, plain(device, probe))});
    beside = std::max(beside, bytes_beside(device, probe));
  }
  const size_t left = device.memory().free_bytes;
  const size_t least = std::max(largest, kOwnPoolBytesMin);
  if (left < least + beside) {
    return no_room(device, "matrix products", least + beside, left);
  }
  return WeightPool::open(device, std::min(std::max(largest, kOwnPoolBytes), left - beside));
}

}  // namespace

Result<double> measure_memory_read(Device& device, size_t host_bytes) {
  size_t bytes = host_bytes;
  if (device.discrete()) {
    const size_t left = device.memory().free_bytes;
    bytes = std::min(kOwnPoolBytes, left) >> 20 << 20;
    if (bytes < kOwnPoolBytesMin) return no_room(device, "its memory", kOwnPoolBytesMin, left);
  }
  return best_of(memory_read_rates(device, bytes, limits_of(device)));
}

PartsInTurn::PartsInTurn(size_t bytes) : count_((bytes + kPartBytes - 1) / kPartBytes) {
  SPILLWAY_CHECK(bytes >> 20 > 0);
  part_ = bytes / count_ >> 20 << 20;
}

Result<MemoryMeter> MemoryMeter::open(Device& device, size_t bytes) {
  SPILLWAY_CHECK(!device.discrete());
  SPILLWAY_ASSIGN_OR_RETURN(WeightPool pool, WeightPool::open(device, bytes));
  auto stream = device.new_stream("ceiling");
  auto& context = *static_cast<cpu::CpuContext*>(stream->native());
  const cpu::ReadPattern fastest =
      cpu::fastest_pattern(context, pool.memory().data(), pool.memory().bytes());
  return MemoryMeter(std::move(pool), std::move(stream), fastest);
}

double MemoryMeter::measure() {
  constexpr int kReads = 3;
  auto& context = *static_cast<cpu::CpuContext*>(stream_->native());
  double best = 0;
  for (int i = 0; i < kReads; ++i) {
    const std::byte* const part = pool_.memory().data() + parts_.next();
    const double start = steady_seconds();
    cpu::read_memory(context, part, parts_.bytes(), pattern_);
    best = std::max(best, static_cast<double>(parts_.bytes()) / (steady_seconds() - start));
  }
  return best;
}

Result<CopyCeiling> measure_copies(Device& device) {
  SPILLWAY_ASSIGN_OR_RETURN(const CopyRates rates,
                            copy_rates(device, kPartBytes / 2, limits_of(device)));
  CopyCeiling ceiling;
  SPILLWAY_ASSIGN_OR_RETURN(ceiling.to_device, best_of(rates.to_device));
  SPILLWAY_ASSIGN_OR_RETURN(ceiling.to_host, best_of(rates.to_host));
  SPILLWAY_ASSIGN_OR_RETURN(ceiling.both, best_of(rates.both));
  return ceiling;
}

Result<std::vector<MatrixCeiling>> measure_matrices(Device& device,
                                                    std::span<const LinearProbe> probes,
                                                    size_t host_bytes) {
  if (!device.discrete()) return measure_on_cpu(device, probes, host_bytes);
  std::vector<MatrixCeiling> ceilings;
  const RunLimits limits = limits_of(device);
  SPILLWAY_ASSIGN_OR_RETURN(const WeightPool pool, own_pool(device, probes));
  for (const LinearProbe& probe : probes) {
    const auto rate = [&](const LinearProbe& one) {
      return best_of(linear_rates(device, pool, one, limits));
    };
    const LinearProbe wide = plain(device, probe);
    MatrixCeiling ceiling;
    SPILLWAY_ASSIGN_OR_RETURN(ceiling.ours, rate(probe));
    ceiling.library = ceiling.ours;
    if (wide.weights != probe.weights) {
      SPILLWAY_ASSIGN_OR_RETURN(ceiling.library, rate(wide));
    }
    ceilings.push_back(ceiling);
  }
  return ceilings;
}

Result<double> measure_prompt_attention(Device& device, const AttentionProbe& probe) {
  return best_of(prompt_attention_rates(device, probe, limits_of(device)));
}

Result<double> measure_decode_attention(Device& device, AttentionProbe probe, size_t host_bytes) {
  const size_t bytes =
      device.discrete() ? std::min(kOwnPoolBytes, device.memory().free_bytes / 2) : host_bytes;
  constexpr int64_t kMost =
      16384;  // More, of a small model, take longer to list than to attend to.
  const int64_t most =
      std::clamp<int64_t>(static_cast<int64_t>(bytes / decode_bytes(probe)), 1, kMost);
  // More sequences at once until a run takes this long: a slow device needs no more to be busy.
  constexpr double kSecondsEnough = 0.02;
  constexpr int64_t kFirst = 16, kMore = 16;
  for (probe.sequences = device.discrete() ? std::min(kFirst, most) : most;;
       probe.sequences = std::min(probe.sequences * kMore, most)) {
    SPILLWAY_ASSIGN_OR_RETURN(const double rate,
                              best_of(decode_attention_rates(device, probe, limits_of(device))));
    if (probe.sequences == most || attended_bytes(probe) / rate > kSecondsEnough) return rate;
  }
}

}  // namespace spillway
