// How fast the linear op is at given shapes, its weights coming from memory: GFLOP/s, the median
// and the best of several runs of about a third of a second, the best as a share of the fastest
// instruction that the format allows (kernels/measure/peaks.h), which runs before and after, and
// GB/s of weights. Usage: linear_bench f32|bf16|q4|q4-int8|q4_1|q4_1-int8|q8_1|q8|q8-int8
// ROWS,OUTPUTS,INPUTS...
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "kernels/device.h"
#include "kernels/measure/peaks.h"
#include "kernels/measure/rates.h"

namespace spillway {
namespace {

constexpr size_t kPoolBytes = size_t{512} << 20;  // At least; more where caches hold so much

int run(const std::string& format, int count, char** shapes) {
  const std::map<std::string, Format> formats = {
      {"f32", Format::kF32},    {"bf16", Format::kBF16}, {"q4", Format::kQ4},
      {"q4-int8", Format::kQ4}, {"q4_1", Format::kQ4_1}, {"q4_1-int8", Format::kQ4_1},
      {"q8_1", Format::kQ8_1},  {"q8", Format::kQ8},     {"q8-int8", Format::kQ8}};
  if (!formats.contains(format) || count == 0) {
    std::fputs(
        "usage: linear_bench f32|bf16|q4|q4-int8|q4_1|q4_1-int8|q8_1|q8|q8-int8 "
        "ROWS,OUTPUTS,INPUTS...\n",
        stderr);
    return 2;
  }
  auto opened =
      open_cpu_device(0, format.ends_with("-int8") ? CpuMatmul::kInt8 : CpuMatmul::kFloat);
  if (!opened.ok()) {
    std::fprintf(stderr, "linear_bench: %s\n", std::string(opened.status().message()).c_str());
    return 1;
  }
  const auto device = std::move(opened).value();
  const WeightPool pool =
      WeightPool::open(*device, std::max(kPoolBytes, bytes_past_caches(4 * kPoolBytes))).value();
  for (int i = 0; i < count; ++i) {
    LinearProbe probe{.weights = formats.at(format)};
    if (std::sscanf(shapes[i], "%ld,%ld,%ld", &probe.rows, &probe.outputs, &probe.inputs) != 3 ||
        std::min({probe.rows, probe.outputs, probe.inputs}) < 1 ||
        weight_bytes(*device, probe) > kPoolBytes) {
      std::fprintf(stderr, "%s: three numbers, and a matrix within 512 MiB, are needed\n",
                   shapes[i]);
      return 2;
    }
    const RunLimits limits{.runs_min = 9, .runs_max = 15, .seconds_max = 4, .run_seconds = 0.3};
    const Arithmetic arithmetic = product_arithmetic(probe.weights);
    const Peaks before = measure_peaks(*device, {});
    Rates rates = linear_rates(*device, pool, probe, limits).value();
    const Peaks peaks = best_of(before, measure_peaks(*device, {}));
    const double peak = peaks.of(arithmetic).operations_per_second;
    std::sort(rates.begin(), rates.end());
    const double flops = 2.0 * static_cast<double>(probe.rows * probe.outputs * probe.inputs);
    const double passes = rates.back() / flops;
    std::printf("%20s  median %7.1f  best %7.1f GFLOP/s, %.3f of %s, %5.1f GB/s\n", shapes[i],
                rates[rates.size() / 2] / 1e9, rates.back() / 1e9, rates.back() / peak,
                std::string(arithmetic_name(arithmetic)).c_str(),
                passes * static_cast<double>(weight_bytes(*device, probe)) / 1e9);
  }
  return 0;
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  return spillway::run(argc > 1 ? argv[1] : "", std::max(0, argc - 2), argv + 2);
}
