// Decode steps over 4-bit and 8-bit rows of the cache as attention_codes.h, attention_q4.h and
// attention_q8.h have them, by AVX2: the same functions, for CPUs without AVX-512 VNNI. Codes are
// widened to 16 bits once for all query heads that share them, and multiplied by queries and
// weights of 16 bits (signed: both are off by 2^-16 of the largest beside them at most).
//
// REQUIRES: AVX2, FMA and F16C; codes_head_size() of the heads.
#pragma once

#include "kernels/cpu/attention_codes.h"

namespace spillway::cpu::avx2 {

void round_q4_query(const float* q, size_t size, CodesQueryGroup* groups);
void dot_q4_run(const std::byte* run, const std::byte* ahead, size_t size, size_t heads,
                const CodesQueryGroup* const* queries, float* const* scores);
void sum_q4_run(const std::byte* run, const std::byte* ahead, size_t size, size_t rows,
                size_t heads, const float* const* weights, float* const* sums,
                float* const* minima);
void finish_q4_sums(const float* minima, size_t size, float* sums);

void round_q8_query(const float* q, size_t size, CodesQueryGroup* groups);
void dot_q8_run(const std::byte* run, const std::byte* ahead, size_t size, size_t heads,
                const CodesQueryGroup* const* queries, float* const* scores);
void sum_q8_run(const std::byte* run, const std::byte* ahead, size_t size, size_t rows,
                size_t heads, const float* const* weights, float* const* sums);
void order_q8_sums(size_t size, float* sums);

}  // namespace spillway::cpu::avx2
