// One decode step of neighbouring heads: reads every key once for the scores, every value once for
// the sum.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/attention_codes.h"
#include "kernels/kv_layout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_decode.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/attention_rows_inl.h"
#include "kernels/cpu/attention_runs_inl.h"
#include "kernels/cpu/exp_inl.h"
#include "kernels/cpu/quant_inl.h"
#include "kernels/cpu/vector_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float highest_of(const float* HWY_RESTRICT scores, size_t rows) {
  const D d;
  V highest = hn::Set(d, scores[0]);
  size_t i = 0;
  for (; i + kStepLanes <= rows; i += kStepLanes)
    highest = hn::Max(hn::LoadU(d, scores + i), highest);
  float most = hn::GetLane(hn::MaxOfLanes(d, highest));
  for (; i < rows; ++i) most = std::max(most, scores[i]);
  return most;
}

// scores -> exp(score - highest); returns the sum. A NaN score makes the sum NaN.
float softmax_in_place(float* HWY_RESTRICT scores, size_t rows, float highest) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V m = hn::Set(d, highest);
  V sum = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= rows; i += lanes) {
    const V e = exp_below_zero(d, hn::Sub(hn::LoadU(d, scores + i), m));
    hn::StoreU(e, d, scores + i);
    sum = hn::Add(sum, e);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  if (i < rows) {
    HWY_ALIGN float rest[hn::MaxLanes(D())] = {};
    std::copy(scores + i, scores + rows, rest);
    hn::Store(exp_below_zero(d, hn::Sub(hn::Load(d, rest), m)), d, rest);
    for (size_t j = 0; i < rows; ++i, ++j) total += scores[i] = rest[j];
  }
  return total;
}

// to += from * factor. Each sum has one term at a time, so the order of its terms is that of steps.
void add_scaled(const float* HWY_RESTRICT from, float factor, size_t count,
                float* HWY_RESTRICT to) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V f = hn::Set(d, factor);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, from + i), f, hn::LoadU(d, to + i)), d, to + i);
  }
  for (; i < count; ++i) to[i] = std::fma(from[i], factor, to[i]);
}

template <class T>
struct Rows {
  const T* at;
  const T* ahead;
};

// How a step reads its rows: as they lie in the cache, quantised ones expanded run by run, or those
// of 4 and 8 bits packed as they are.
enum class RowsAs : uint8_t { kStored, kExpanded, kPackedQ4, kPackedQ8 };

// `count` rows of a run as T: where they lie or, quantised, expanded to `expanded`. 16 rows of 128
// numbers are 8 KiB in the L1 cache, which the sums read as they read float32 rows.
template <class T, RowsAs kAs>
HWY_INLINE Rows<T> rows_of(const HeadView& view, const std::byte* from, const std::byte* ahead,
                           size_t count, float* HWY_RESTRICT expanded) {
  if constexpr (kAs == RowsAs::kStored) {
    constexpr size_t kAt = std::is_same_v<T, int8_t> ? sizeof(float) : 0;
    return {reinterpret_cast<const T*>(from + kAt), reinterpret_cast<const T*>(ahead + kAt)};
  } else {
    prefetch_run(ahead, kRun * view.kv_row_bytes);
    const auto size = static_cast<size_t>(view.head_size);
    expand_quantized_rows(view.kv_format, from, view.kv_row_bytes, count, size, expanded);
    return {expanded, expanded};
  }
}

// The query heads' parts of the scratch.
struct StepHeads {
  float *out[kStepHeadsMax], *q[kStepHeadsMax], *scores[kStepHeadsMax];
  // Of packed rows (attention_codes.h); the rounded queries lie in `q`.
  float* minima[kStepHeadsMax];
  const CodesQueryGroup* rounded[kStepHeadsMax];
};

// What rows that are not packed have instead of functions for them
struct NoSteps {};

// Whether there are functions for packed rows, and which. (Tests narrow the choice of
// instructions.)
#undef SPILLWAY_PACKED_ROWS
#define SPILLWAY_PACKED_ROWS (HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX2)
template <RowsAs kAs>
const auto& steps_of() {
#if SPILLWAY_PACKED_ROWS
  constexpr bool kAvx512 = HWY_TARGET <= HWY_AVX3;
  if constexpr (kAs == RowsAs::kPackedQ4) {
    return q4_steps(kAvx512);
  } else if constexpr (kAs == RowsAs::kPackedQ8) {
    return q8_steps(kAvx512);
  } else
#endif
  {
    static constexpr NoSteps kNone;
    return kNone;
  }
}

size_t round_to_runs(size_t rows) {
  return (rows + kRun - 1) / kRun * kRun;
}

// to[r] = from[r] * the scale of row r of an 8-bit run, of all its rows.
HWY_INLINE void scale_by_rows(const std::byte* run, size_t row_bytes, const float* from,
                              float* to) {
  const D d;
  HWY_ALIGN float scales[kRun];
  for (size_t r = 0; r < kRun; ++r) std::memcpy(scales + r, run + r * row_bytes, sizeof(float));
  for (size_t r = 0; r < kRun; r += kStepLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, from + r), hn::Load(d, scales + r)), d, to + r);
  }
}

// A run's rows, of which `count` are in use, and the same ones of the next KV heads: `heads` runs,
// one behind another.
struct Run {
  const std::byte* at;
  const std::byte* ahead;  // What to prefetch
  size_t first, count, heads;
};

// The scores of a run's rows and the `group` query heads that share it, from head `h` on.
template <class T, size_t kSize, RowsAs kAs, class Steps>
HWY_INLINE void score_run(const Steps& steps, const HeadView& view, const Run& run,
                          const StepHeads& heads, size_t h, size_t group,
                          float* HWY_RESTRICT expanded) {
  const auto size = static_cast<size_t>(view.head_size);
  if constexpr (kAs == RowsAs::kPackedQ4 || kAs == RowsAs::kPackedQ8) {
    steps.dot_runs({run.at, run.ahead, size, run.heads, group, run.first}, heads.rounded + h,
                   heads.scores + h);
  } else {
    const Rows<T> k = rows_of<T, kAs>(view, run.at, run.ahead, run.count, expanded);
    for_heads(group, [&](auto together, size_t first) {
      constexpr size_t kHeads = decltype(together)::value;
      float* scores[kHeads];
      for (size_t g = 0; g < kHeads; ++g) scores[g] = heads.scores[h + first + g] + run.first;
      constexpr bool kAhead = kAs == RowsAs::kStored;
      if constexpr (kHeads == 1) {
        dot_rows<kSize, kAhead>(heads.q[h + first], k.at, k.ahead, size, scores[0]);
      } else {
        dot_tiles<kHeads, kSize, kAhead>(heads.q + h + first, k.at, k.ahead, size, scores);
      }
      for (size_t g = 0; g < kHeads; ++g) {
        dot_tail(heads.q[h + first + g], k.at, size, run.count, scores[g]);
        if constexpr (std::is_same_v<T, int8_t>) {
          scale_by_rows(run.at, view.kv_row_bytes, scores[g], scores[g]);
        }
      }
    });
  }
}

// Adds a run's values, weighted by what has become of the scores, to these heads' sums.
template <class T, size_t kSize, RowsAs kAs, class Steps>
HWY_INLINE void sum_run(const Steps& steps, const HeadView& view, const Run& run,
                        const StepHeads& heads, size_t h, size_t group,
                        float* HWY_RESTRICT expanded) {
  const auto size = static_cast<size_t>(view.head_size);
  [[maybe_unused]] const CodesRuns packed = {run.at, run.ahead, size, run.heads, group, run.first};
  if constexpr (kAs == RowsAs::kPackedQ8) {
    steps.sum_runs(packed, run.count, heads.scores + h, heads.out + h);
  } else if constexpr (kAs == RowsAs::kPackedQ4) {
    steps.sum_runs(packed, run.count, heads.scores + h, heads.out + h, heads.minima + h);
  } else {
    const float* weights[kStepHeadsMax];
    for (size_t g = 0; g < group; ++g) weights[g] = heads.scores[h + g] + run.first;
    const Rows<T> v = rows_of<T, kAs>(view, run.at, run.ahead, run.count, expanded);
    HWY_ALIGN float scaled[kSharedHeads * kRun];  // Weights times the rows' scales
    for_heads(group, [&](auto together, size_t first) {
      constexpr size_t kHeads = decltype(together)::value;
      if constexpr (std::is_same_v<T, int8_t>) {
        for (size_t g = 0; g < kHeads; ++g) {
          scale_by_rows(run.at, view.kv_row_bytes, weights[first + g], scaled + g * kRun);
          weights[first + g] = scaled + g * kRun;
        }
      }
      sum_rows<kHeads, kSize, kAs == RowsAs::kStored>(weights + first, v.at, v.ahead, size,
                                                      run.count, heads.out + h + first);
    });
  }
}

// `kSize`: the head size as a constant, so that row offsets are constants; 0: any.
template <class T, size_t kSize, RowsAs kAs>
void attend_rows(const StepView& step, float* HWY_RESTRICT scratch) {
  constexpr bool kPacked = kAs == RowsAs::kPackedQ4 || kAs == RowsAs::kPackedQ8;
  const HeadView& first_head = step.first;
  [[maybe_unused]] const auto& steps = steps_of<kAs>();
  const auto size = static_cast<size_t>(first_head.head_size);
  const auto rows = static_cast<size_t>(first_head.rows);
  const auto kv_heads = static_cast<size_t>(step.kv_heads);
  const size_t run_bytes = kRun * first_head.kv_row_bytes, block_bytes = first_head.block_bytes;
  const size_t runs = round_to_runs(rows) / kRun;
  const size_t group = std::max<size_t>(1, step.count / kv_heads);
  const auto runs_at = [&](size_t offset, bool there) {
    return Runs{first_head.kv, block_bytes, offset,
                run_bytes,     kv_heads,    there ? runs * kv_heads : 0};
  };
  const size_t ahead_bytes = group > 1 && !kPacked ? kAheadBytesShared : kAheadBytes;
  const size_t distance = std::max<size_t>(1, ahead_bytes / run_bytes);
  const Runs all_keys = runs_at(first_head.keys_at, true),
             all_values = runs_at(first_head.values_at, true);
  const Runs none, next_keys = runs_at(first_head.keys_at + kv_heads * run_bytes, step.more);
  RunCursor ahead(all_keys, all_values);
  for (size_t i = 0; i < std::min(distance, all_keys.count); ++i) {
    prefetch_run(ahead.at(), run_bytes);
    ahead.advance();
  }
  // Of packed rows the minima, which are less.
  float* HWY_RESTRICT expanded = scratch;
  const size_t minima = kRun * (size / kCodesGroup);
  float* next_scratch = expanded + (kAs == RowsAs::kStored ? 0 : kRun * size);
  StepHeads heads;
  for (size_t h = 0; h < step.count; ++h) {
    float* const at = next_scratch;
    heads.out[h] = at;
    heads.q[h] = at + size;
    heads.scores[h] = at + 2 * size;
    next_scratch += 2 * size + round_to_runs(rows);
    const float* const query = first_head.q + h * size;
    if constexpr (kPacked) {
      auto* rounded = reinterpret_cast<CodesQueryGroup*>(heads.q[h]);
      heads.rounded[h] = rounded;
      take_query<float>(query, first_head.scale, size, at);
      steps.round_query(at, size, rounded);
      if constexpr (kAs == RowsAs::kPackedQ4) {
        heads.minima[h] = expanded + h * minima;
        std::fill_n(heads.minima[h], minima, 0.0f);
      }
    } else {
      take_query<T>(query, first_head.scale, size, heads.q[h]);
    }
  }
  const auto for_runs = [&](const Runs& of, const auto& use) {
    RunCursor at(of, none);
    for (size_t run = 0; run < runs; ++run) {
      const size_t first = run * kRun, count = std::min(kRun, rows - first);
      for (size_t head = 0; head < kv_heads;) {
        const size_t together = kPacked ? std::min(at.contiguous(), ahead.contiguous()) : 1;
        use(Run{at.at(), ahead.at(), first, count, together}, head * group);
        at.advance(together);
        ahead.advance(together);
        head += together;
      }
    }
  };
  for_runs(all_keys, [&](const Run& run, size_t h) {
    score_run<T, kSize, kAs>(steps, first_head, run, heads, h, group, expanded);
  });
  float totals[kStepHeadsMax];
  for (size_t h = 0; h < step.count; ++h) {
    float* const scores = heads.scores[h];
    const float highest = highest_of(scores, rows);
    totals[h] = softmax_in_place(scores, rows, highest);
    if (step.parts != nullptr) step.parts[h] = {highest, totals[h]};
    float* const sums = step.scores == nullptr ? nullptr : step.scores[h / group];
    if (sums != nullptr) add_scaled(scores, 1.0f / totals[h], rows, sums);
    std::fill(heads.out[h], heads.out[h] + size, 0.0f);
  }
  ahead = RunCursor(all_values, next_keys);
  for (size_t i = 0; i < distance; ++i) ahead.advance();
  for_runs(all_values, [&](const Run& run, size_t h) {
    sum_run<T, kSize, kAs>(steps, first_head, run, heads, h, group, expanded);
  });
  const size_t out_bytes = size * dtype_bytes(first_head.out_dtype);
  for (size_t h = 0; h < step.count; ++h) {
    if constexpr (kAs == RowsAs::kPackedQ4) {
      steps.finish_sums(heads.minima[h], size, heads.out[h]);
    }
    if constexpr (kAs == RowsAs::kPackedQ8) steps.order_sums(size, heads.out[h]);
    give_sums<T>(heads.out[h], step.parts == nullptr ? totals[h] : 1.0f, size, heads.q[h]);
    store_row(first_head.out_dtype, heads.q[h], size, first_head.out + h * out_bytes);
  }
}

template <class T, RowsAs kAs = RowsAs::kStored>
void attend_sized(const StepView& step, float* scratch) {
  const int64_t size = step.first.head_size;
  if (size == 64) return attend_rows<T, 64, kAs>(step, scratch);
  if (size == 128) return attend_rows<T, 128, kAs>(step, scratch);
  attend_rows<T, 0, kAs>(step, scratch);
}

void AttendStep(const StepView& step, float* scratch) {
  const Format format = step.first.kv_format;
#if SPILLWAY_PACKED_ROWS
  if (codes_head_size(step.first.head_size)) {
    if (format == Format::kQ4) return attend_rows<float, 0, RowsAs::kPackedQ4>(step, scratch);
    if (format == Format::kQ8) return attend_rows<float, 0, RowsAs::kPackedQ8>(step, scratch);
  }
#endif
  if (format == Format::kQ8) return attend_sized<int8_t>(step, scratch);
  if (is_quantized(format)) return attend_sized<float, RowsAs::kExpanded>(step, scratch);
  switch (element_of(format)) {
    case DType::kF32:
      return attend_sized<float>(step, scratch);
    case DType::kBF16:
      return attend_sized<hwy::bfloat16_t>(step, scratch);
    case DType::kF16:
      return attend_sized<hwy::float16_t>(step, scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {
HWY_EXPORT(AttendStep);
size_t step_scratch_bytes(const HeadView& view, int64_t heads) {
  const int64_t expanded = is_quantized(view.kv_format) ? kKvBlockRows * view.head_size : 0;
  const int64_t scores = (view.rows + kKvBlockRows - 1) / kKvBlockRows * kKvBlockRows;
  return static_cast<size_t>(expanded + heads * (2 * view.head_size + scores)) * sizeof(float);
}
int64_t step_heads_max(const HeadView& view) {
  // 131,072 rows of eight heads
  constexpr int64_t kFloats = (int64_t{1} << 20) + (1 << 14);
  const int64_t fit = kFloats / (2 * view.head_size + view.rows);
  return std::clamp<int64_t>(fit, 1, static_cast<int64_t>(kStepHeadsMax));
}
void attend_step(const StepView& step, float* scratch) {
  SPILLWAY_CHECK(step.count >= 1 && step.count <= kStepHeadsMax);
  HWY_DYNAMIC_DISPATCH(AttendStep)(step, scratch);
}
}  // namespace spillway::cpu
#endif  // HWY_ONCE
