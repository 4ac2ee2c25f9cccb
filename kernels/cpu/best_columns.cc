// The index of each row's highest number.
#include <limits>

#include "kernels/cpu/cpu_ops.h"

namespace spillway::cpu {

namespace {

int32_t best_of(const float* row, int32_t count) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float best = -kInfinity;
  int32_t index = -1;
  for (int32_t i = 0; i < count; ++i) {
    if (!(row[i] < kInfinity)) return -1;
    if (row[i] <= best) continue;
    best = row[i];
    index = i;
  }
  return index;
}

}  // namespace

void best_columns(CpuContext& context, const BestArgs& args) {
  context.parallel_for(args.in.rows, [&](int64_t row) {
    const auto* numbers = reinterpret_cast<const float*>(args.in.row(row));
    args.out[row] = best_of(numbers, args.counts[static_cast<size_t>(row)]);
  });
}

}  // namespace spillway::cpu
