// A decode step over 4-bit and 8-bit rows of the cache as they lie there, by AVX-512 VNNI: a run of
// 16 rows, for all query heads that share them (attention_q4.h, attention_q8.h; by AVX2:
// attention_codes_avx2.h). Heads of whole groups alone, that is of a multiple of 64 numbers.
//
// Each group of a query is rounded to integers of 16 bits, taken as two planes of signed bytes; the
// softmax weights of a run's values, times the scales of its rows, to 16 bits beside the largest of
// them. So a query's numbers and weights are off by 2^-16 of the largest beside them at most; the
// cache itself by 2^-8 (8 bits) or 2^-5 (4 bits). Sums of integers are exact, in any order, and a
// head's bits do not depend on the heads beside it. NaN and infinities in a query, a weight or a
// scale become NaN.
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

// Whether this CPU and head size are as above.
bool attends_codes(int64_t head_size);

// A query's numbers of one group: step * (256 planes[0] + planes[1]), four signed bytes a word, in
// the order of the format's codes.
struct CodesQueryGroup {
  uint32_t planes[2][kCodesGroup / 4];
  float step;
  int32_t sum;  // Of the integers
};
// It takes the place of a query's floats.
static_assert(sizeof(CodesQueryGroup) <= kCodesGroup * sizeof(float));

}  // namespace spillway::cpu
