#include "kernels/cpu/attention_parts.h"

#include <algorithm>
#include <cmath>

#include "kernels/convert_numbers.h"

namespace spillway::cpu {

void join_part(const StepPart& part, const float* sums, size_t size, StepPart* all,
               float* all_sums) {
  const float highest = std::max(all->highest, part.highest);
  const float before = std::exp(all->highest - highest), here = std::exp(part.highest - highest);
  *all = {highest, all->total * before + part.total * here};
  for (size_t i = 0; i < size; ++i) all_sums[i] = all_sums[i] * before + sums[i] * here;
}

void store_joined(const HeadView& view, const StepPart& all, float* all_sums) {
  const auto size = static_cast<size_t>(view.head_size);
  for (size_t i = 0; i < size; ++i) all_sums[i] /= all.total;
  convert_numbers(DType::kF32, reinterpret_cast<const std::byte*>(all_sums), view.out_dtype,
                  view.out, size);
}

}  // namespace spillway::cpu
