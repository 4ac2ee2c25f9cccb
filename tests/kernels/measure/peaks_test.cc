// Instruction peaks: that there are some, of what, and how they go together.
#include "kernels/measure/peaks.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace spillway::peaks_test {
namespace {

TEST_CASE("every arithmetic has a peak, and narrower numbers are no slower") {
  const auto device = open_cpu_device(1).value();
  const Peaks peaks = measure_peaks(*device, {.runs = 1, .run_seconds = 0.002});
  for (const Arithmetic arithmetic : {Arithmetic::kF32, Arithmetic::kBF16, Arithmetic::kInt8}) {
    INFO(arithmetic_name(arithmetic));
    const double rate = peaks.of(arithmetic).operations_per_second;
    CHECK((std::isfinite(rate) && rate > 0));
    CHECK_FALSE(peaks.of(arithmetic).instruction.empty());
  }
  CHECK(peaks.bf16.operations_per_second >= peaks.f32.operations_per_second);
  CHECK(peaks.int8.operations_per_second >= peaks.bf16.operations_per_second);
}

TEST_CASE("what our kernels multiply with has a loop of its own") {
  const auto has = [](Arithmetic arithmetic) {
    for (const cpu::PeakLoop& loop : cpu::peak_loops()) {
      if (loop.arithmetic == arithmetic && loop.operations > 0) return true;
    }
    return false;
  };
  CHECK(has(Arithmetic::kF32));
  if (open_cpu_device(1).value()->native_bf16()) CHECK(has(Arithmetic::kBF16));
  if (open_cpu_device(1, CpuMatmul::kInt8).ok()) CHECK(has(Arithmetic::kInt8));
}

TEST_CASE(
    "the peak is of the widest arithmetic that the format allows, not of what a kernel uses") {
  CHECK(product_arithmetic(Format::kF32) == Arithmetic::kF32);
  CHECK(product_arithmetic(Format::kF16) == Arithmetic::kF32);
  CHECK(product_arithmetic(Format::kBF16) == Arithmetic::kBF16);
  CHECK(product_arithmetic(Format::kQ4) == Arithmetic::kInt8);
  const Peaks tiles{{10, "f32"}, {60, "bf16"}, {120, "int8"}};
  CHECK(tiles.of_attention(Format::kF32).instruction == "f32");
  CHECK(tiles.of_attention(Format::kBF16).instruction == "bf16");
  CHECK(tiles.of_attention(Format::kQ4).instruction == "bf16");
  CHECK(tiles.of_attention(Format::kF16).operations_per_second == 20);
  const Peaks vectors{{10, "f32"}, {20, "bf16"}, {20, "bf16"}};
  CHECK(vectors.of_attention(Format::kF16).instruction == "f32");
  CHECK(vectors.of_attention(Format::kQ8).instruction == "bf16");
  const Peaks vnni{{10, "f32"}, {10, "f32"}, {40, "int8"}};
  CHECK(vnni.of_attention(Format::kQ8).instruction == "int8");
  CHECK(vnni.of_attention(Format::kQ8).operations_per_second == 20);
  CHECK(vnni.of_attention(Format::kQ4).instruction == "f32");
}

TEST_CASE("the best of two measurements is taken peak by peak") {
  const Peaks a{{10, "a"}, {50, "b"}, {60, "c"}}, b{{12, "d"}, {40, "e"}, {60, "f"}};
  const Peaks best = best_of(a, b);
  CHECK(best.f32.operations_per_second == 12);
  CHECK(best.f32.instruction == "d");
  CHECK(best.bf16.instruction == "b");
  CHECK(best.int8.instruction == "c");
}

}  // namespace
}  // namespace spillway::peaks_test
