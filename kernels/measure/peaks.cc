#include "kernels/measure/peaks.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/cpu/cpu_context.h"

namespace spillway {

namespace {

// Pieces per thread, each long compared with its dispatch: a descheduled thread delays one piece
// only.
constexpr int64_t kPiecesOfThread = 16;
constexpr int64_t kTurnsMin = 1000;
constexpr double kGrain = 1e-7;

double rate_of(cpu::CpuContext& context, const cpu::PeakLoop& loop, int64_t turns) {
  const int64_t pieces = kPiecesOfThread * context.threads();
  const double start = steady_seconds();
  context.parallel_for(pieces, [&](int64_t) { loop.run(turns); });
  const double seconds = std::max(kGrain, steady_seconds() - start);
  return loop.operations * static_cast<double>(turns) * static_cast<double>(pieces) / seconds;
}

double best_rate(cpu::CpuContext& context, const cpu::PeakLoop& loop, const PeakRuns& how) {
  // A first, short run gives the number of turns of a run.
  const double estimate = rate_of(context, loop, kTurnsMin);
  const double turns = how.run_seconds * estimate / loop.operations /
                       static_cast<double>(kPiecesOfThread * context.threads());
  double best = 0;
  for (int run = 0; run < how.runs; ++run) {
    best =
        std::max(best, rate_of(context, loop, std::max<int64_t>(kTurnsMin, std::llround(turns))));
  }
  return best;
}

}  // namespace

std::string_view arithmetic_name(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kF32:
      return "f32";
    case Arithmetic::kBF16:
      return "bf16";
    case Arithmetic::kInt8:
      return "int8";
  }
  return "";
}

Arithmetic product_arithmetic(Format weights) {
  if (is_quantized(weights)) return Arithmetic::kInt8;
  return weights == Format::kBF16 ? Arithmetic::kBF16 : Arithmetic::kF32;
}

Peak best_of(const Peak& a, const Peak& b) {
  return b.operations_per_second > a.operations_per_second ? b : a;
}

const Peak& Peaks::of(Arithmetic arithmetic) const {
  return arithmetic == Arithmetic::kF32 ? f32 : arithmetic == Arithmetic::kBF16 ? bf16 : int8;
}

Peak Peaks::of_attention(Format kv) const {
  if (kv == Format::kF32) return f32;
  if (kv == Format::kQ8) return best_of(bf16, {int8.operations_per_second / 2, int8.instruction});
  if (kv != Format::kF16) return bf16;
  return best_of(f32, {bf16.operations_per_second / 3, bf16.instruction});
}

Peaks best_of(const Peaks& a, const Peaks& b) {
  return {best_of(a.f32, b.f32), best_of(a.bf16, b.bf16), best_of(a.int8, b.int8)};
}

Peaks measure_peaks(Device& device, const PeakRuns& how) {
  SPILLWAY_CHECK(!device.discrete() && how.runs > 0);
  const auto stream = device.new_stream("peak");
  auto& context = *static_cast<cpu::CpuContext*>(stream->native());
  Peaks peaks;
  for (const cpu::PeakLoop& loop : cpu::peak_loops()) {
    const Peak peak{best_rate(context, loop, how), loop.instruction};
    if (loop.arithmetic == Arithmetic::kF32) peaks.f32 = best_of(peaks.f32, peak);
    if (loop.arithmetic != Arithmetic::kInt8) peaks.bf16 = best_of(peaks.bf16, peak);
    peaks.int8 = best_of(peaks.int8, peak);
  }
  return peaks;
}

}  // namespace spillway
