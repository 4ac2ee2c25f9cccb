#include "server/cli/profile/profile_measure.h"

#include <algorithm>

#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "kernels/measure/peaks.h"
#include "kernels/measure/rates.h"
#include "scheduler/planning/memory_budget.h"

namespace spillway {

namespace {

// Shares of the time; the disk has the rest.
constexpr double kMatrixShare = 0.5;
constexpr double kOtherShare = 0.02;  // Memory, both attentions, each direction of the link: each

constexpr double kRunSeconds = 0.005;  // Shorter runs would measure the clock and the launch.
constexpr int kSamplesMin = 3, kSamplesMax = 9;
constexpr int kPeakSamples = 5;  // 20 ms each, per instruction

// Small, medium and large: a decode step of few sequences reads weights, prefill multiplies.
constexpr int64_t kHeights[] = {1, 4, 16, 64, 256, 512};
constexpr std::pair<int64_t, int64_t> kShapes[] = {{4096, 4096}, {16384, 4096}};

// No less than the largest matrix in 16 bits; on a discrete device ten times its cache. By
// bytes_past_caches() a CPU's is no smaller than the largest one in 32, if memory allows.
constexpr size_t kPoolBytesMin = size_t{128} << 20, kPoolBytesMax = size_t{512} << 20;
constexpr size_t kFreeMemoryShare = 4;  // At most 1/kFreeMemoryShare of the free bytes

constexpr size_t kCopyBytes = size_t{64} << 20;
constexpr size_t kSmallCopyBytes[] = {size_t{1} << 20, size_t{8} << 20};

// opt-6.7b's heads.
constexpr int64_t kHeads = 32, kHeadSize = 128;
constexpr int64_t kPromptTokens = 512, kPromptSequences = 4, kDecodeTokens = 1024;

Status interrupted() {
  return {Code::kCancelled, "interrupted"};
}

// A figure that is measured exactly, once.
Figure exact(size_t value) {
  return figure_of({static_cast<double>(value)});
}

Result<Figure> figure_of_rates(Result<Rates> rates) {
  if (!rates.ok()) return rates.status();
  return figure_of(std::move(rates).value());
}

// Allots time: several samples each, one when the share is used up.
class Time {
 public:
  Time(double seconds, int measurements)
      : deadline_(steady_seconds() + seconds), each_(seconds / measurements) {}
  RunLimits limits() const {
    if (steady_seconds() > deadline_) return {1, 1, 0, kRunSeconds};
    return {kSamplesMin, kSamplesMax, each_, kRunSeconds};
  }

 private:
  const double deadline_, each_;
};

class Processors {
 public:
  Processors(const ProfileOptions& options, HardwareProfile* profile)
      : options_(options), profile_(*profile) {}

  Status measure(Device& device) {
    HardwareProfile::Compute& compute = profile_.compute;
    compute.kind = device.discrete() ? "cuda" : "cpu";
    SPILLWAY_RETURN_IF_ERROR(memory(device, &compute.memory_bytes, &compute.memory_free_bytes));
    SPILLWAY_ASSIGN_OR_RETURN(const size_t pool_bytes, pool_size(device));
    SPILLWAY_RETURN_IF_ERROR(memory_and_decode(device, pool_bytes, &compute.memory_read,
                                               &compute.decode_attention,
                                               &compute.decode_attention_shared));
    AttentionProbe step = decode_probe(device);
    const auto decode = [&](Format kv, int64_t shared, Figure* figure) {
      step.kv = kv;
      step.kv_heads = kHeads / shared;
      return decode_attention(device, step, pool_bytes, figure);
    };
    constexpr int64_t kShared = HardwareProfile::kQueryHeadsPerKvHead;
    SPILLWAY_RETURN_IF_ERROR(decode(Format::kQ4, 1, &compute.decode_attention_q4));
    SPILLWAY_RETURN_IF_ERROR(decode(Format::kQ4, kShared, &compute.decode_attention_q4_shared));
    SPILLWAY_RETURN_IF_ERROR(decode(Format::kQ8, 1, &compute.decode_attention_q8));
    SPILLWAY_RETURN_IF_ERROR(decode(Format::kQ8, kShared, &compute.decode_attention_q8_shared));
    if (!device.discrete()) SPILLWAY_RETURN_IF_ERROR(peaks(device));
    if (device.discrete()) {
      SPILLWAY_ASSIGN_OR_RETURN(compute.small_ops,
                                figure_of_rates(small_op_rates(device, other())));
    }
    SPILLWAY_RETURN_IF_ERROR(matrices(device, pool_bytes));
    options_.say("Measuring attention to prompts");
    return prompt_attention(device, &compute.prompt_attention);
  }

  // Runs only with a discrete device; else the CPU is the compute device.
  Status measure_host() {
    options_.say("Measuring the host");
    SPILLWAY_ASSIGN_OR_RETURN(
        const auto cpu,
        open_cpu_device(static_cast<int>(std::min<int64_t>(options_.threads, 1 << 20))));
    HardwareProfile::Host& host = profile_.host;
    SPILLWAY_RETURN_IF_ERROR(memory(*cpu, &host.memory_bytes, &host.memory_free_bytes));
    SPILLWAY_ASSIGN_OR_RETURN(const size_t pool_bytes, pool_size(*cpu));
    return memory_and_decode(*cpu, pool_bytes, &host.memory_read, &host.decode_attention, nullptr);
  }

  Status measure_link(Device& device) {
    if (!options_.keep_going()) return interrupted();
    options_.say("Measuring the link");
    SPILLWAY_ASSIGN_OR_RETURN(CopyRates rates, copy_rates(device, kCopyBytes, other()));
    profile_.link = {figure_of(std::move(rates.to_device)), figure_of(std::move(rates.to_host)),
                     figure_of(std::move(rates.both))};
    SPILLWAY_ASSIGN_OR_RETURN(profile_.link->round_trips,
                              figure_of_rates(round_trip_rates(device, other())));
    for (const size_t bytes : kSmallCopyBytes) {
      if (!options_.keep_going()) return interrupted();
      SPILLWAY_ASSIGN_OR_RETURN(CopyRates small, copy_rates(device, bytes, other()));
      profile_.link->small.push_back(
          {bytes, figure_of(std::move(small.to_device)), figure_of(std::move(small.to_host))});
    }
    return {};
  }

 private:
  RunLimits other() const {
    return {kSamplesMin, kSamplesMax, kOtherShare * options_.seconds, kRunSeconds};
  }

  static Status memory(const Device& device, Figure* all, Figure* free) {
    const MemoryInfo info = device.memory();
    const size_t left = device.discrete()
                            ? info.free_bytes
                            : std::min<size_t>(available_host_bytes(), info.total_bytes);
    *all = exact(info.total_bytes);
    *free = exact(left);
    return {};
  }

  static Result<size_t> pool_size(const Device& device) {
    const size_t free = device.discrete() ? device.memory().free_bytes : available_host_bytes();
    const size_t share = free / kFreeMemoryShare;
    const size_t wanted = device.discrete() ? kPoolBytesMax : bytes_past_caches(share);
    const size_t bytes = std::min(wanted, share) >> 20 << 20;
    if (bytes >= kPoolBytesMin) return bytes;
    return Status(Code::kCapacity, std::string(device.name()) + " has " + format_bytes(free) +
                                       " of memory free; measuring it takes " +
                                       format_bytes(kPoolBytesMin * kFreeMemoryShare) +
                                       ". End other programs, or use a profile of "
                                       "configs/hardware");
  }

  // Measures attention over a cache between two halves of reading memory: neighbours on the machine
  // change its free bandwidth within seconds, and a plan uses the ratio of the two.
  // `shared`, of several query heads a KV head: null if it is not wanted.
  Status memory_and_decode(Device& device, size_t bytes, Figure* memory, Figure* decode,
                           Figure* shared) {
    if (!options_.keep_going()) return interrupted();
    options_.say("Measuring memory, and attention to what is cached");
    SPILLWAY_ASSIGN_OR_RETURN(Rates reads, memory_read_rates(device, bytes, other()));
    AttentionProbe step = decode_probe(device);
    SPILLWAY_RETURN_IF_ERROR(decode_attention(device, step, bytes, decode));
    step.kv_heads /= HardwareProfile::kQueryHeadsPerKvHead;
    if (shared != nullptr) SPILLWAY_RETURN_IF_ERROR(decode_attention(device, step, bytes, shared));
    SPILLWAY_ASSIGN_OR_RETURN(const Rates after, memory_read_rates(device, bytes, other()));
    reads.insert(reads.end(), after.begin(), after.end());
    *memory = figure_of(std::move(reads));
    return {};
  }

  Status peaks(Device& device) {
    if (!options_.keep_going()) return interrupted();
    options_.say("Measuring the peaks of instructions");
    constexpr Arithmetic kAll[] = {Arithmetic::kF32, Arithmetic::kBF16, Arithmetic::kInt8};
    Peaks best;
    std::vector<Peaks> samples;
    for (int i = 0; i < kPeakSamples; ++i) {
      samples.push_back(measure_peaks(device, {.runs = 1}));
      best = best_of(best, samples.back());
    }
    for (const Arithmetic arithmetic : kAll) {
      std::vector<double> rates;
      for (const Peaks& sample : samples) {
        rates.push_back(sample.of(arithmetic).operations_per_second);
      }
      profile_.compute.peaks.push_back({std::string(arithmetic_name(arithmetic)),
                                        best.of(arithmetic).instruction,
                                        figure_of(std::move(rates))});
    }
    return {};
  }

  Status matrices(Device& device, size_t pool_bytes) {
    SPILLWAY_ASSIGN_OR_RETURN(const WeightPool pool, WeightPool::open(device, pool_bytes));
    const Time time(
        kMatrixShare * options_.seconds,
        static_cast<int>(std::size(kFormats) * std::size(kHeights) * std::size(kShapes)));
    for (const Format format : kFormats) {
      options_.say("Measuring matrix products in " + std::string(format_name(format)));
      for (const int64_t rows : kHeights) {
        for (const auto& [outputs, inputs] : kShapes) {
          const LinearProbe probe{format, rows, outputs, inputs};
          // On a machine with little memory the large shape is left out.
          if (weight_bytes(device, probe) > pool_bytes) continue;
          if (!options_.keep_going()) return interrupted();
          Result<Rates> rates = linear_rates(device, pool, probe, time.limits());
          if (rates.status().code() == Code::kInfeasible) {
            // A plan in this format will report that the profile lacks its rate.
            options_.say("Left out: " + std::string(rates.status().message()));
            continue;
          }
          SPILLWAY_ASSIGN_OR_RETURN(Figure rate, figure_of_rates(std::move(rates)));
          profile_.compute.matrix.push_back({format, rows, outputs, inputs, std::move(rate)});
        }
      }
    }
    return {};
  }

  // The cache in the format that a 16-bit model has on this device.
  static AttentionProbe probe(const Device& device) {
    return {.kv = device.native_bf16() ? Format::kBF16 : Format::kF16,
            .sequences = kPromptSequences,
            .tokens = kPromptTokens,
            .heads = kHeads,
            .kv_heads = kHeads,
            .head_size = kHeadSize};
  }

  Status prompt_attention(Device& device, Figure* figure) {
    if (!options_.keep_going()) return interrupted();
    SPILLWAY_ASSIGN_OR_RETURN(
        *figure, figure_of_rates(prompt_attention_rates(device, probe(device), other())));
    return {};
  }

  static AttentionProbe decode_probe(const Device& device) {
    AttentionProbe step = probe(device);
    step.tokens = kDecodeTokens;
    return step;
  }

  // Of enough sequences that their cache is no smaller than the pool.
  Status decode_attention(Device& device, AttentionProbe step, size_t pool_bytes, Figure* figure) {
    if (!options_.keep_going()) return interrupted();
    step.sequences = 1;
    step.sequences = std::max<int64_t>(
        1, static_cast<int64_t>(static_cast<double>(pool_bytes) / attended_bytes(step)));
    SPILLWAY_ASSIGN_OR_RETURN(*figure,
                              figure_of_rates(decode_attention_rates(device, step, other())));
    return {};
  }

  const ProfileOptions& options_;
  HardwareProfile& profile_;
};

}  // namespace

Status measure_processors(Device& device, const ProfileOptions& options, HardwareProfile* profile) {
  Processors processors(options, profile);
  SPILLWAY_RETURN_IF_ERROR(processors.measure(device));
  if (device.discrete()) {
    SPILLWAY_RETURN_IF_ERROR(processors.measure_link(device));
    return processors.measure_host();
  }
  const HardwareProfile::Compute& compute = profile->compute;
  profile->host = {compute.memory_bytes, compute.memory_free_bytes, compute.memory_read,
                   compute.decode_attention};
  return {};
}

}  // namespace spillway
