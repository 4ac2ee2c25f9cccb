// A decode step over 4-bit and 8-bit rows of the cache as they lie there: runs of 16 rows, each for
// all query heads that share it. Expanding 4-bit rows first costs several times what reading them
// does. Heads of whole groups alone, that is of a multiple of 64 numbers.
//
// Each group of a query is rounded to integers of 16 bits; the softmax weights of a run's values,
// times the scales of its rows, to 16 bits beside the largest of them. So a query's numbers and
// weights are off by 2^-16 of the largest beside them at most; the cache itself by 2^-8 (8 bits) or
// 2^-5 (4 bits). Sums of integers are exact, in any order, and a head's bits do not depend on the
// heads beside it. NaN and infinities in a query, a weight or a scale become NaN.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway::cpu {

constexpr size_t kCodesGroup = 64;      // Numbers of a head that are taken together
constexpr size_t kCodesGroupsMax = 16;  // Of a head

// Heads of whole groups, and no longer ones than the functions have room for.
constexpr bool codes_head_size(int64_t head_size) {
  constexpr auto kGroup = static_cast<int64_t>(kCodesGroup);
  return head_size % kGroup == 0 && head_size / kGroup <= int64_t{kCodesGroupsMax};
}

// A query's numbers of one group: step * (256 planes[0] + planes[1]), four signed bytes a word, in
// the order of the format's codes. (AVX2 has signed numbers of 16 bits instead.)
struct CodesQueryGroup {
  uint32_t planes[2][kCodesGroup / 4];
  float step;
  int32_t sum;  // Of the integers
};
// It takes the place of a query's floats.
static_assert(sizeof(CodesQueryGroup) <= kCodesGroup * sizeof(float));

// Runs of the same rows of neighbouring KV heads, one behind another. Query heads i * group to
// (i + 1) * group - 1 share run i.
struct CodesRuns {
  const std::byte* at = nullptr;
  const std::byte* ahead = nullptr;  // Memory is asked for as many bytes from here on as they have.
  size_t size = 0;                   // Head size
  size_t count = 1;                  // Runs
  size_t group = 1;                  // Query heads that share each of them, at most 32
  size_t first = 0;                  // Place of their first row among a head's scores
};

// What both formats do.
struct CodesSteps {
  // In place of a query's floats: groups[0] up to groups[size / 64].
  void (*round_query)(const float* q, size_t size, CodesQueryGroup* groups);

  // scores[h][first + r] = q . k of query head h and all 16 rows r of its run of keys.
  void (*dot_runs)(const CodesRuns& runs, const CodesQueryGroup* const* queries,
                   float* const* scores);
};

// 4-bit rows (base/quantized.h):
//
//   q . k = sum over groups of step * (scale * sum(q n) + minimum * sum(q))
//   sum of w v = sum of (w scale) n + sum of w minimum
struct Q4Steps : CodesSteps {
  // Adds the first `rows` rows r of a head's run of values, times weights[h][first + r] >= 0, to
  // sums[h] [size], but for what their minima add, of which minima[h] [size / 64][16] has sums by
  // row.
  void (*sum_runs)(const CodesRuns& runs, size_t rows, const float* const* weights,
                   float* const* sums, float* const* minima);

  // Adds the minima to the sums and puts these, which are in another order until then, in theirs.
  void (*finish_sums)(const float* minima, size_t size, float* sums);
};

// 8-bit rows (base/quantized_rows.h):
//
//   q . k = scale of the row * sum over groups of step * sum(q n)
struct Q8Steps : CodesSteps {
  // Adds the first `rows` rows r of a head's run of values, times weights[h][first + r] >= 0, to
  // sums[h] [size], whose numbers are in another order until order_sums().
  void (*sum_runs)(const CodesRuns& runs, size_t rows, const float* const* weights,
                   float* const* sums);
  void (*order_sums)(size_t size, float* sums);
};

#if defined(__x86_64__)
// By AVX-512 VNNI (attention_q4.cc, attention_q8.cc), and by AVX2, FMA and F16C
// (attention_codes_avx2.cc). REQUIRES: a CPU that has them; codes_head_size() of the heads.
extern const Q4Steps kQ4Vnni, kQ4Avx2;
extern const Q8Steps kQ8Vnni, kQ8Avx2;

// Those of this CPU: where it may be AVX-512 and has VNNI, the former. REQUIRES: AVX2.
const Q4Steps& q4_steps(bool avx512);
const Q8Steps& q8_steps(bool avx512);
#endif

}  // namespace spillway::cpu
