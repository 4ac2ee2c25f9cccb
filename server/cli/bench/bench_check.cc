#include "server/cli/bench/bench_check.h"

#include <algorithm>
#include <cstdio>

#include "kernels/weight_layout.h"

namespace spillway {

namespace {

// Minimum shares. The matrix products of docs/benchmarks on two Zen 4 cores, whose peak in bf16 is
// 469 GFLOP/s, reach 0.90 of it at 512 rows, 0.82 at 16, and with 4-bit weights 0.72 and more;
// these are about a tenth less, for the noise of shared machines. Prompt attention computes in f32,
// unless the cache's format allows more: 0.62 of that peak at 512 tokens on two Emerald Rapids
// cores (docs/benchmarks/history.md).
constexpr double kTallProductsMin = 0.8, kMiddleProductsMin = 0.7, kShortProductsMin = 0.6;
constexpr double kQuantizedProductsMin = 0.6;
constexpr double kPromptAttentionMin = 0.45;
constexpr int64_t kTallProductRows = 256, kMiddleRows = 16;
constexpr int64_t kPromptTokensMin = 256;  // Shorter prompts are too little work to tell

// Smaller models spend their time on distributing work, which no peak predicts.
constexpr int64_t kInputsMin = 1024;

bool is_small(const BenchResult& result) {
  const auto& rates = result.ceilings.rates.matrix;
  return std::none_of(rates.begin(), rates.end(),
                      [](const MatrixRate& rate) { return rate.inputs >= kInputsMin; });
}

// The minimum for decode attention, of memory's rate: its design target for heads with keys and
// values of their own, of 16 bits; else a tenth or two less than what two cores with AVX-512 VNNI
// reach (docs/benchmarks/history.md, 2026-12-01). The arithmetic of 8- and 4-bit rows takes longer
// than their bytes, and each of several query heads that share a KV head adds its own. More than
// eight were not measured: no minimum, 0.
double decode_attention_min(const Plan& plan) {
  struct Minima {
    double wide, q8, q4;
  };
  constexpr Minima kOwn = {0.8, 0.7, 0.55}, kUpToFour = {0.55, 0.5, 0.33},
                   kUpToEight = {0.35, 0.35, 0.18};
  constexpr int64_t kFour = 4, kEight = 8;
  const int64_t shared = plan.shape.heads / std::max<int64_t>(plan.shape.kv_heads, 1);
  if (shared > kEight) return 0;
  const Minima& minima = shared <= 1 ? kOwn : shared <= kFour ? kUpToFour : kUpToEight;
  if (plan.kv_format() == Format::kQ8) return minima.q8;
  return plan.kv_format() == Format::kQ4 ? minima.q4 : minima.wide;
}

// The arithmetic that a matrix product uses, whatever its weights would allow.
Arithmetic arithmetic_in_use(const Plan& plan, const Peaks& peaks) {
  if (plan.format == Format::kBF16) return Arithmetic::kBF16;
  if (!is_quantized(plan.format)) return Arithmetic::kF32;
  if (plan.in_int8) return Arithmetic::kInt8;
  const bool has_bf16 = peaks.bf16.operations_per_second > peaks.f32.operations_per_second;
  return has_bf16 ? Arithmetic::kBF16 : Arithmetic::kF32;
}

double share(double value, double of) {
  return of > 0 ? value / of : 0;
}

// The peak, or the rate at which memory supplies a product that reads its weights once.
double ceiling_of(const BenchResult& result, const MatrixRate& rate, double peak) {
  const double flops = 2.0 * static_cast<double>(rate.rows) * static_cast<double>(rate.outputs) *
                       static_cast<double>(rate.inputs);
  const auto bytes = static_cast<double>(
      packed_bytes(result.plan.matrix_layout, result.plan.format, rate.outputs, rate.inputs));
  const double seconds = std::max(share(flops, peak), share(bytes, result.ceilings.rates.memory));
  return share(flops, seconds);
}

}  // namespace

std::vector<Gate> gates_of(const BenchResult& result) {
  if (result.plan.discrete || is_small(result)) return {};
  const Plan& plan = result.plan;
  const MeasuredCeilings& ceilings = result.ceilings;
  const double peak =
      ceilings.peaks.of(arithmetic_in_use(plan, ceilings.peaks)).operations_per_second;
  std::vector<Gate> gates;
  // For each batch size take the slowest shape.
  for (size_t i = 0; i < ceilings.matrix.size(); ++i) {
    const MatrixRate& rate = ceilings.rates.matrix[i];
    const double least = is_quantized(plan.format)       ? kQuantizedProductsMin
                         : rate.rows >= kTallProductRows ? kTallProductsMin
                         : rate.rows >= kMiddleRows      ? kMiddleProductsMin
                                                         : kShortProductsMin;
    const Gate gate{"products of " + std::to_string(rate.rows) + " rows",
                    share(ceilings.matrix[i].ours, ceiling_of(result, rate, peak)), least};
    const auto same = std::find_if(gates.begin(), gates.end(),
                                   [&](const Gate& other) { return other.name == gate.name; });
    if (same == gates.end()) {
      gates.push_back(gate);
    } else {
      same->value = std::min(same->value, gate.value);
    }
  }
  if (result.flags.prompt_tokens >= kPromptTokensMin) {
    gates.push_back(
        {"prompt attention of the f32 peak",
         share(ceilings.rates.prompt_attention, ceilings.peaks.f32.operations_per_second),
         kPromptAttentionMin});
  }
  if (const double least = decode_attention_min(plan); least > 0) {
    gates.push_back({"decode attention of memory's rate",
                     share(ceilings.rates.cache, ceilings.rates.memory), least});
  }
  return gates;
}

std::vector<std::string> beaten_bounds(const BenchResult& result) {
  std::vector<std::string> beaten;
  const auto look = [&](const char* name, const Bound& bound, double seconds) {
    if (efficiency(bound, seconds) > kEfficiencyMax) beaten.push_back(name);
  };
  look("total", result.total.hardware, result.measured_seconds());
  look("prefill", result.prefill.hardware, time_by_cause(prefill_sweeps(result.sweeps)).seconds);
  look("decode", result.decode.hardware, time_by_cause(decode_sweeps(result.sweeps)).seconds);
  return beaten;
}

Status check_result(const BenchResult& result) {
  std::string failed;
  const auto say = [&](const std::string& text) { failed += (failed.empty() ? "" : "; ") + text; };
  for (const std::string& name : beaten_bounds(result)) {
    say("the bound of " + name + " was beaten, so its efficiency is invalid");
  }
  for (const Gate& gate : gates_of(result)) {
    if (gate.passed()) continue;
    char text[160];
    std::snprintf(text, sizeof(text), "%s: %.2f, at least %.2f is asked", gate.name.c_str(),
                  gate.value, gate.least);
    say(text);
  }
  if (failed.empty()) return {};
  return {Code::kIoError, "--check: " + failed + "; run it again where nothing else runs"};
}

}  // namespace spillway
