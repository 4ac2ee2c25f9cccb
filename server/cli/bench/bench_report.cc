#include "server/cli/bench/bench_report.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/units.h"
#include "server/cli/bench/bench_check.h"
#include "server/cli/common/console.h"

namespace spillway {

namespace {

std::string rate_line(const char* name, double seconds, double tokens, const Bounds& bounds,
                      double measured_seconds) {
  return text_line(
      "%-8s %10.2f s %10.1f tokens/s   bound %8.2f s (%s)   efficiency %.2f%s, of our "
      "kernels %.2f",
      name, seconds, ratio(tokens, seconds), bounds.hardware.seconds,
      std::string(resource_name(bounds.hardware.resource)).c_str(),
      efficiency(bounds.hardware, measured_seconds),
      efficiency(bounds.hardware, measured_seconds) > kEfficiencyMax ? " (invalid)" : "",
      efficiency(bounds.kernels, measured_seconds));
}

std::string both_bounds(const char* of, const Bound& bound, double seconds) {
  return text_line(
      "bounds of %s by the hardware: %.2f s sweep by sweep, where no sweep works for the next "
      "(efficiency %.2f); %.2f s for any schedule (%.2f)",
      of, bound.seconds, efficiency(bound, seconds), bound.seconds_any_schedule,
      ratio(bound.seconds_any_schedule, seconds));
}

// Both bounds by name, and whether they hold.
std::string bound_lines(const BenchResult& r) {
  std::string text = both_bounds("the total", r.total.hardware, r.measured_seconds());
  for (const std::string& name : beaten_bounds(r)) {
    text += text_line(
        "INVALID: %s took less than its bound allows, so a ceiling below is too low "
        "and its efficiency says nothing",
        name.c_str());
  }
  return text;
}

std::string tier_line(const char* name, const TierBytes& bytes) {
  return text_line("  %-12s %12s %12s %12s", name, format_bytes(bytes.device).c_str(),
                   format_bytes(bytes.host).c_str(), format_bytes(bytes.disk).c_str());
}

std::string cause_line(const char* name, double prefill, double decode) {
  return text_line("  %-24s %10.2f %10.2f", name, prefill, decode);
}

std::string head(const BenchResult& r) {
  return text_line(
             "%s, %lld sequences of %lld + %lld tokens, weights %s, KV %s, rule %s, block %lld",
             r.model.c_str(), static_cast<long long>(r.flags.sequences),
             static_cast<long long>(r.flags.prompt_tokens),
             static_cast<long long>(r.flags.new_tokens),
             (std::string(format_name(r.plan.format)) + (r.plan.in_int8 ? " (int8)" : "")).c_str(),
             std::string(format_name(r.plan.kv_format())).c_str(),
             to_string(r.plan.kv_rule()).c_str(),
             static_cast<long long>(r.plan.block_sequences())) +
         text_line("loaded   %10.2f s   peak %s of host memory, budget %s", r.plan.load_seconds,
                   format_bytes(r.peak_host_bytes).c_str(),
                   format_bytes(r.plan.budget_bytes).c_str()) +
         (r.plan.shape.ranks > 1
              ? text_line("ranks    %lld, which share every layer; what follows is of rank 0, "
                          "which has the embeddings, too",
                          static_cast<long long>(r.plan.shape.ranks))
              : "") +
         (r.plan.discrete ? text_line("device   %s: peak %s of its memory, budget %s; %s are the "
                                      "driver's, its libraries' and other programs'",
                                      r.device.c_str(), format_bytes(r.peak_device_bytes).c_str(),
                                      format_bytes(r.plan.device_budget_bytes).c_str(),
                                      format_bytes(r.other_device_bytes).c_str())
                          : "");
}

// A stream of requests: its middle, which is what a longer one would be.
std::string steady_lines(const BenchResult& r) {
  const std::vector<LoggedSweep> sweeps = steady_sweeps(r.sweeps);
  if (sweeps.empty()) {
    return text_line(
        "steady   no sequence ended before the last prompt; --requests of several "
        "blocks have a steady part");
  }
  const double seconds = time_by_cause(sweeps).seconds;
  return rate_line("steady", seconds, static_cast<double>(generated_tokens(sweeps)), r.steady,
                   seconds) +
         both_bounds("the steady part", r.steady.hardware, seconds);
}

std::string target_line(const BenchResult& r) {
  if (r.plan.prefill_target() == 0) return "";
  return text_line("prompts  %lld tokens a sweep planned, %lld at the end",
                   static_cast<long long>(r.plan.prefill_target()),
                   static_cast<long long>(r.prefill_target_at_end));
}

std::string rates(const BenchResult& r, const TimeByCause& prefill, const TimeByCause& decode) {
  const auto sequences = static_cast<double>(r.flags.sequences);
  const auto generated = static_cast<double>(r.generated);
  return rate_line("prefill", r.prefill_seconds,
                   sequences * static_cast<double>(r.flags.prompt_tokens), r.prefill,
                   prefill.seconds) +
         rate_line("decode", r.decode_seconds, generated - sequences, r.decode, decode.seconds) +
         rate_line("total", r.total_seconds, generated, r.total, r.measured_seconds()) +
         bound_lines(r) + (r.flags.requests > 0 ? steady_lines(r) : "") + target_line(r) +
         (r.cut ? text_line("projected: decode and total, from %lld of %lld decode steps, %.2f s; "
                            "bound and efficiency are of what ran",
                            static_cast<long long>(r.cut->decode_steps),
                            static_cast<long long>(r.flags.new_tokens - 1), r.cut->decode_seconds)
                : "") +
         (r.predicted
              ? text_line("predicted %23.1f tokens/s by the profile of this machine: measured "
                          "is %.2f of it",
                          *r.predicted, ratio(ratio(generated, r.total_seconds), *r.predicted))
              : "");
}

std::string causes(const BenchResult& r, const TimeByCause& prefill, const TimeByCause& decode) {
  const double outside = r.measured_seconds() - prefill.seconds - decode.seconds;
  return text_line("time by cause (s)             prefill     decode") +
         cause_line("compute", prefill.compute_seconds, decode.compute_seconds) +
         cause_line("waiting for weights", prefill.weights_wait_seconds,
                    decode.weights_wait_seconds) +
         cause_line("waiting for KV", prefill.kv_wait_seconds, decode.kv_wait_seconds) +
         cause_line("waiting for activations", prefill.activations_wait_seconds,
                    decode.activations_wait_seconds) +
         cause_line("waiting for staging", prefill.staging_wait_seconds,
                    decode.staging_wait_seconds) +
         text_line("  %lld and %lld sweeps; %.2f s outside of them",
                   static_cast<long long>(prefill.sweeps), static_cast<long long>(decode.sweeps),
                   std::max(0.0, outside));
}

std::string tiers(const BenchResult& r, const TimeByCause& all) {
  return text_line("bytes by tier            device         host         disk") +
         tier_line("weights", r.plan.weights) + tier_line("KV", r.plan.kv) +
         tier_line("activations", r.plan.activations) +
         text_line("  disk: read %s, written %s", format_bytes(all.disk_read_bytes).c_str(),
                   format_bytes(all.disk_write_bytes).c_str()) +
         (r.plan.discrete ? text_line("  host to device: %s, back: %s",
                                      format_bytes(all.to_device_bytes).c_str(),
                                      format_bytes(all.to_host_bytes).c_str())
                          : "");
}

// The best rate, and the two measured before and after.
std::string ceiling_line(const BenchResult& r, const char* name, double Ceilings::*rate) {
  return text_line("  %-11s %6.2f GB/s (%.2f before, %.2f after)", name,
                   r.ceilings.rates.*rate / 1e9, r.before.rates.*rate / 1e9,
                   r.after.rates.*rate / 1e9);
}

std::string memory_line(const BenchResult& r) {
  if (r.during.memory.empty()) {
    return ceiling_line(r, "memory", &Ceilings::memory);
  }
  const auto [low, high] = std::minmax_element(r.during.memory.begin(), r.during.memory.end());
  return text_line(
      "  memory      %6.2f GB/s (%.2f before, %.2f to %.2f between sweeps, %.2f after)",
      r.ceilings.rates.memory / 1e9, r.before.rates.memory / 1e9, *low / 1e9, *high / 1e9,
      r.after.rates.memory / 1e9);
}

std::string peak_line(const char* name, const Peak& peak) {
  return text_line("  %-18s %8.0f GFLOP/s (%s)", name, peak.operations_per_second / 1e9,
                   peak.instruction.c_str());
}

std::string compute_lines(const BenchResult& r) {
  return text_line("hardware, the best of before, during and after the run") +
         peak_line("products", r.ceilings.products) +
         peak_line("prompt attention", r.ceilings.attention);
}

std::string kernel_lines(const BenchResult& r) {
  const MeasuredCeilings& found = r.ceilings;
  const Ceilings& rates = found.rates;
  const char* of = r.plan.discrete ? "the matrix ceiling" : "its peak";
  std::string text =
      text_line("kernels alone, and their share of the hardware's") +
      text_line("  prompt attention %8.0f GFLOP/s, %.2f of %s", rates.prompt_attention / 1e9,
                ratio(rates.prompt_attention, found.attention.operations_per_second), of) +
      text_line("  decode attention %8.2f GB/s, %.2f of memory's rate", rates.cache / 1e9,
                ratio(rates.cache, rates.memory)) +
      text_line("  matrix products (GFLOP/s)");
  for (size_t i = 0; i < rates.matrix.size(); ++i) {
    const MatrixRate& rate = rates.matrix[i];
    std::string rates_of = std::to_string(std::llround(found.matrix[i].ours / 1e9));
    if (r.plan.discrete) {
      const long long library = std::llround(found.matrix[i].library / 1e9);
      rates_of = "cuBLAS " + std::to_string(library) + ", ours " + rates_of;
    }
    text += text_line("  %4lld x [%lld, %lld]: %s, %.2f of %s", static_cast<long long>(rate.rows),
                      static_cast<long long>(rate.outputs), static_cast<long long>(rate.inputs),
                      rates_of.c_str(),
                      ratio(found.matrix[i].ours, found.products.operations_per_second), of);
  }
  return text;
}

std::string ceilings(const BenchResult& r) {
  const Ceilings& rates = r.ceilings.rates;
  const CopyCeiling& copies = r.ceilings.copies;
  std::string text = compute_lines(r) + memory_line(r);
  if (rates.disk_read > 0) {
    text += r.ceilings.of_own_file
                ? text_line(
                      "  disk read   %6.2f GB/s, of the run's own file after it (%.2f before, "
                      "of a new one)",
                      rates.disk_read / 1e9, r.before.rates.disk_read / 1e9)
                : ceiling_line(r, "disk read", &Ceilings::disk_read);
  }
  if (rates.disk_write > 0) {
    text += ceiling_line(r, "disk write", &Ceilings::disk_write);
  }
  if (r.plan.discrete) {
    text += text_line("  host to device %.1f GB/s, back %.1f, both at once %.1f",
                      copies.to_device / 1e9, copies.to_host / 1e9, copies.both / 1e9);
  }
  return text + kernel_lines(r);
}

// The results of --check, if it was given.
std::string gates(const BenchResult& r) {
  if (!r.flags.check) return "";
  std::string text = text_line("checks");
  for (const Gate& gate : gates_of(r)) {
    text += text_line("  %-6s %s: %.2f, at least %.2f", gate.passed() ? "ok" : "MISSED",
                      gate.name.c_str(), gate.value, gate.least);
  }
  return text;
}

}  // namespace

std::string bench_table(const BenchResult& result) {
  const TimeByCause all = time_by_cause(result.sweeps);
  const TimeByCause prefill = time_by_cause(prefill_sweeps(result.sweeps));
  const TimeByCause decode = time_by_cause(decode_sweeps(result.sweeps));
  return head(result) + rates(result, prefill, decode) + causes(result, prefill, decode) +
         tiers(result, all) + ceilings(result) + gates(result);
}

double ratio(double a, double b) {
  return b > 0 ? a / b : 0;
}

}  // namespace spillway
