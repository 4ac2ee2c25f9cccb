// Samples an index from each row.
#include "kernels/cpu/cpu_ops.h"

namespace spillway::cpu {

void run(CpuContext& context, const SampleArgs& args) {
  context.parallel_for(args.in.rows, [&](int64_t row) {
    const std::span<float> numbers(args.in.f32(row), static_cast<size_t>(args.in.columns));
    args.out[row] = sample(numbers, args.rules[static_cast<size_t>(row)]);
  });
}

}  // namespace spillway::cpu
