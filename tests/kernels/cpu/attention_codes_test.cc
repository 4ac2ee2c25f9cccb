// Scores of packed keys and sums of packed values, in 4 and in 8 bits, against their definition.
#include "kernels/cpu/attention_codes.h"

#include <hwy/targets.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/base/quantized.h"
#include "kernels/cpu/gemm_int8.h"
#include "kernels/kv_layout.h"
#include "tests/support/random_data.h"
#include "tests/support/skip.h"

namespace spillway::attention_codes_test {
namespace {

using test::random_floats;

constexpr size_t kRows = kKvBlockRows;

// The functions for one set of instructions.
struct Functions {
  const char* instructions;
  const cpu::Q4Steps* q4;
  const cpu::Q8Steps* q8;
  const cpu::CodesSteps& of(Format format) const {
    return format == Format::kQ4 ? static_cast<const cpu::CodesSteps&>(*q4) : *q8;
  }
};

// Those that this CPU has.
std::vector<Functions> all_functions() {
  std::vector<Functions> all;
#if defined(__x86_64__)
  if (cpu::has_avx512_vnni()) all.push_back({"AVX-512 VNNI", &cpu::kQ4Vnni, &cpu::kQ8Vnni});
  if ((hwy::SupportedTargets() & HWY_AVX2) != 0) {
    all.push_back({"AVX2", &cpu::kQ4Avx2, &cpu::kQ8Avx2});
  }
#endif
  return all;
}

// What a query's number or a row's weight is off by, beside the largest of its group or run.
constexpr double kStep = 0.5 / 32600;

// A run of 16 rows, as they are stored and as they are read.
struct PackedRun {
  Format format;
  size_t size;
  std::vector<std::byte> bytes;
  std::vector<float> rows;

  PackedRun(Format packed, size_t head_size, uint64_t seed)
      : format(packed),
        size(head_size),
        bytes(kRows * format_row_bytes(format, static_cast<int64_t>(size))),
        rows(random_floats(static_cast<int64_t>(kRows * size), seed)) {
    // Rows and groups differ in range and offset.
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto group = static_cast<float>(i / 64);
      rows[i] = rows[i] * (1 + group) + std::sin(group);
    }
    for (size_t r = 0; r < kRows; ++r) {
      const std::span<float> row(rows.data() + r * size, size);
      pack_quantized_row(format, row, at(r));
      unpack_quantized_row(format, at(r), row);
    }
  }
  std::byte* at(size_t row) { return bytes.data() + row * bytes.size() / kRows; }
};

// Queries of any scale, and what becomes of them.
struct Queries {
  Functions functions;
  Format format;
  std::vector<std::vector<float>> heads;
  std::vector<std::vector<cpu::CodesQueryGroup>> rounded;
  std::vector<const cpu::CodesQueryGroup*> at;

  Queries(const Functions& by, Format packed, size_t size, size_t count, uint64_t seed)
      : functions(by), format(packed) {
    for (size_t h = 0; h < count; ++h) {
      const float deviation = h % 2 == 0 ? 1.0f : 1e-4f;
      heads.push_back(random_floats(static_cast<int64_t>(size), seed + h, deviation));
      rounded.emplace_back(size / cpu::kCodesGroup);
      round();
    }
    for (const auto& one : rounded) at.push_back(one.data());
  }
  void round() {
    functions.of(format).round_query(heads.back().data(), heads.back().size(),
                                     rounded.back().data());
  }
};

std::vector<std::vector<float>> dot(PackedRun& run, const Queries& queries) {
  std::vector<std::vector<float>> scores(queries.at.size(), std::vector<float>(kRows, NAN));
  std::vector<float*> to;
  for (auto& head : scores) to.push_back(head.data());
  const cpu::CodesSteps& by = queries.functions.of(run.format);
  const std::byte* const bytes = run.bytes.data();
  by.dot_runs({bytes, bytes, run.size, 1, to.size(), 0}, queries.at.data(), to.data());
  return scores;
}

// The values' sums, beginning at `begin`.
std::vector<std::vector<float>> sum(const Functions& by, PackedRun& run, size_t rows,
                                    const std::vector<std::vector<float>>& weights,
                                    float begin = 1.0f) {
  const size_t count = weights.size(), minima_count = run.size / 64 * kRows;
  std::vector<std::vector<float>> sums(count, std::vector<float>(run.size, begin)),
      minima(count, std::vector<float>(minima_count));
  std::vector<const float*> from;
  std::vector<float*> to, lowest;
  for (size_t h = 0; h < count; ++h) {
    from.push_back(weights[h].data());
    to.push_back(sums[h].data());
    lowest.push_back(minima[h].data());
  }
  const std::byte* const bytes = run.bytes.data();
  const cpu::CodesRuns of_one = {bytes, bytes, run.size, 1, count, 0};
  if (run.format == Format::kQ8) {
    by.q8->sum_runs(of_one, rows, from.data(), to.data());
    for (float* const one : to) by.q8->order_sums(run.size, one);
  } else {
    by.q4->sum_runs(of_one, rows, from.data(), to.data(), lowest.data());
    for (size_t h = 0; h < count; ++h) by.q4->finish_sums(lowest[h], run.size, to[h]);
  }
  return sums;
}

std::vector<std::vector<float>> random_weights(size_t heads) {
  std::vector<std::vector<float>> weights;
  for (size_t h = 0; h < heads; ++h) {
    weights.push_back(random_floats(kRows, 7 + h));
    for (float& weight : weights.back()) weight = std::abs(weight);
  }
  return weights;
}

// Scores and sums of several runs in one call, with their rows in the middle of others, are bit for
// bit those of each run alone.
void check_several_runs(const Functions& by) {
  const Format format = GENERATE(Format::kQ4, Format::kQ8);
  const size_t size = GENERATE(64, 128, 192), group = GENERATE(1, 2, 3, 4, 7, 16);
  const size_t count = GENERATE(1, 3, 18), rows = GENERATE(16, 5);
  CAPTURE(by.instructions, format_name(format), size, group, count, rows);
  constexpr size_t kFirst = 32;  // Of the runs' rows
  std::vector<PackedRun> alone;
  std::vector<std::byte> together;
  for (size_t i = 0; i < count; ++i) {
    alone.emplace_back(format, size, 100 + i);
    const std::vector<float> damaged(size, NAN);
    for (size_t r = rows; r < kRows; ++r) pack_quantized_row(format, damaged, alone[i].at(r));
    together.insert(together.end(), alone.back().bytes.begin(), alone.back().bytes.end());
  }
  const size_t heads = count * group;
  const auto numbers = [&](size_t each) {
    return std::vector<std::vector<float>>(heads, std::vector<float>(each, 0.5f));
  };
  auto scores = numbers(kFirst + kRows), sums = numbers(size), minima = numbers(size / 64 * kRows);
  std::vector<float*> scores_at, sums_at, minima_at;
  std::vector<const float*> weights_at;
  for (size_t h = 0; h < heads; ++h) {
    scores_at.push_back(scores[h].data());
    sums_at.push_back(sums[h].data());
    std::fill(minima[h].begin(), minima[h].end(), 0.0f);
    minima_at.push_back(minima[h].data());
  }
  const Queries queries(by, format, size, heads, 11);
  const std::byte* const bytes = together.data();
  const cpu::CodesRuns runs = {bytes, bytes, size, count, group, kFirst};
  by.of(format).dot_runs(runs, queries.at.data(), scores_at.data());
  auto weights = random_weights(heads);
  for (auto& head : weights) {
    head.insert(head.begin(), kFirst, 77.0f);
    weights_at.push_back(head.data());
  }
  if (format == Format::kQ8) {
    by.q8->sum_runs(runs, rows, weights_at.data(), sums_at.data());
    for (float* const one : sums_at) by.q8->order_sums(size, one);
  } else {
    by.q4->sum_runs(runs, rows, weights_at.data(), sums_at.data(), minima_at.data());
    for (size_t h = 0; h < heads; ++h) by.q4->finish_sums(minima_at[h], size, sums_at[h]);
  }
  for (size_t h = 0; h < heads; ++h) {
    CAPTURE(h);
    PackedRun& run = alone[h / group];
    Queries one = queries;
    one.at = {queries.at[h]};
    const std::vector<float> own_scores = dot(run, one)[0];
    const std::vector<float> own_weights(weights[h].begin() + kFirst, weights[h].end());
    std::vector<float> own_sums = sum(by, run, rows, {own_weights}, 0.5f)[0];
    REQUIRE(std::equal(own_scores.begin(), own_scores.begin() + static_cast<ptrdiff_t>(rows),
                       scores[h].begin() + kFirst));
    REQUIRE(std::count(scores[h].begin(), scores[h].begin() + kFirst, 0.5f) == kFirst);
    REQUIRE(own_sums == sums[h]);
  }
}

void check_scores(const Functions& by) {
  const Format format = GENERATE(Format::kQ4, Format::kQ8);
  const auto size = static_cast<size_t>(GENERATE(64, 128, 192, 256, 1024));
  const auto heads = static_cast<size_t>(GENERATE(1, 2, 3, 4, 5, 7));
  INFO(format_name(format) << ", head size " << size << ", heads " << heads);
  PackedRun run(format, size, 1);
  const Queries queries(by, format, size, heads, 2);
  const auto scores = dot(run, queries);
  for (size_t h = 0; h < heads; ++h) {
    for (size_t r = 0; r < kRows; ++r) {
      double expected = 0, terms = 0, rounded = 0;
      for (size_t first = 0; first < size; first += 64) {
        double most = 0, keys = 0;
        for (size_t i = first; i < first + 64; ++i) {
          const double q = queries.heads[h][i], k = run.rows[r * size + i];
          expected += q * k;
          terms += std::abs(q * k);
          most = std::max(most, std::abs(q));
          keys += std::abs(k);
        }
        rounded += kStep * most * keys;
      }
      INFO("head " << h << " row " << r);
      REQUIRE(std::abs(scores[h][r] - expected) <= rounded + 3e-7 * terms);
      // Most of the errors cancel out.
      REQUIRE(std::abs(scores[h][r] - expected) <= 0.6 * rounded + 3e-7 * terms);
    }
  }
  // Whoever is beside it.
  for (size_t h = 0; h < heads; ++h) {
    Queries alone = queries;
    alone.at = {queries.at[h]};
    CHECK(dot(run, alone).front() == scores[h]);
  }
}

void check_damaged(const Functions& by) {
  const Format format = GENERATE(Format::kQ4, Format::kQ8);
  PackedRun run(format, 128, 3);
  Queries queries(by, format, 128, 1, 4);
  const auto scores_of_run = [&] { return std::vector<float>(dot(run, queries).front()); };
  const float bad = GENERATE(NAN, INFINITY, -INFINITY);
  queries.heads[0][70] = bad;
  queries.round();
  for (const float score : scores_of_run()) CHECK(std::isnan(score));
  std::fill(queries.heads[0].begin(), queries.heads[0].end(), 0.0f);
  queries.round();
  for (const float score : scores_of_run()) CHECK(score == 0.0f);
  std::fill(queries.heads[0].begin(), queries.heads[0].end(), 1e-37f);
  queries.round();
  for (const float score : scores_of_run()) CHECK(std::abs(score) < 1e-33f);

  queries.heads[0] = random_floats(128, 5);
  queries.round();
  std::vector<float> damaged(128, 1.0f);
  damaged[3] = bad;
  pack_quantized_row(format, damaged, run.at(9));
  const auto scores = scores_of_run();
  for (size_t r = 0; r < kRows; ++r) CHECK(std::isnan(scores[r]) == (r == 9));

  // Values: all numbers of an 8-bit row have its scale, those of 4 bits their group's.
  auto weights = random_weights(2);
  const size_t damaged_numbers = format == Format::kQ4 ? 64 : 128;
  for (const auto& sums : sum(by, run, kRows, weights)) {
    for (size_t i = 0; i < 128; ++i) CHECK(std::isnan(sums[i]) == (i < damaged_numbers));
  }
  weights[1][4] = bad;
  const auto sums = sum(by, run, 9, weights);
  for (size_t i = 0; i < 128; ++i) {
    CHECK(std::isfinite(sums[0][i]));
    CHECK(std::isnan(sums[1][i]));
  }
  weights.assign(1, std::vector<float>(kRows, GENERATE(0.0f, -0.0f)));
  CHECK(sum(by, run, 9, weights) == std::vector(1, std::vector<float>(128, 1.0f)));
}

void check_sums(const Functions& by) {
  const Format format = GENERATE(Format::kQ4, Format::kQ8);
  const auto size = static_cast<size_t>(GENERATE(64, 128, 192, 1024));
  const auto heads = static_cast<size_t>(GENERATE(1, 2, 3, 4, 5, 9, 32));
  const auto rows = static_cast<size_t>(GENERATE(1, 7, 16));
  INFO(format_name(format) << ", head size " << size << ", heads " << heads << ", rows " << rows);
  PackedRun run(format, size, 6);
  const std::vector<float> damaged(size, NAN);
  for (size_t r = rows; r < kRows; ++r) pack_quantized_row(format, damaged, run.at(r));
  const auto weights = random_weights(heads);
  const auto sums = sum(by, run, rows, weights);
  for (size_t h = 0; h < heads; ++h) {
    for (size_t i = 0; i < size; ++i) {
      // A weight is rounded beside the run's largest, times a code of at most the row's range.
      double expected = 1, terms = 1, most = 0;
      for (size_t r = 0; r < rows; ++r) {
        const float* const row = run.rows.data() + r * size;
        const double term = double{weights[h][r]} * double{row[i]};
        expected += term;
        terms += std::abs(term);
        const size_t first = format == Format::kQ4 ? i / 64 * 64 : 0;
        const size_t count = format == Format::kQ4 ? 64 : size;
        const auto [low, high] = std::minmax_element(row + first, row + first + count);
        most = std::max(most, double{weights[h][r]} * std::max<double>(*high - *low, *high));
        terms += std::abs(double{weights[h][r]} * double{*low});
      }
      INFO("head " << h << " number " << i);
      REQUIRE(std::abs(sums[h][i] - expected) <=
              kStep * most * static_cast<double>(rows) + 3e-7 * terms);
    }
    CHECK(sum(by, run, rows, {weights[h]}).front() == sums[h]);
  }
}

// With all functions that this CPU has.
void for_each(void (*check)(const Functions&)) {
  const std::vector<Functions> all = all_functions();
  if (all.empty()) return test::skip("this CPU has neither AVX-512 VNNI nor AVX2");
  const size_t which = GENERATE(range(size_t{0}, size_t{2}));
  if (which >= all.size()) return;
  INFO(all[which].instructions);
  check(all[which]);
}

TEST_CASE("scores of packed keys agree with their definition as far as queries are rounded") {
  for_each(check_scores);
}

TEST_CASE("NaN and infinities in queries and packed rows become NaN, zeros zeros") {
  for_each(check_damaged);
}

TEST_CASE("sums of packed values agree with their definition, of the rows in use alone") {
  for_each(check_sums);
}

TEST_CASE("several runs of packed rows in one call are what each is alone, bit for bit") {
  for_each(check_several_runs);
}

TEST_CASE("a CPU with AVX-512 and no VNNI has the functions for AVX2") {
#if defined(__x86_64__)
  CHECK(&cpu::q4_steps(false) == &cpu::kQ4Avx2);
  CHECK(&cpu::q8_steps(false) == &cpu::kQ8Avx2);
  CHECK((&cpu::q4_steps(true) == &cpu::kQ4Vnni) == cpu::has_avx512_vnni());
  CHECK((&cpu::q8_steps(true) == &cpu::kQ8Vnni) == cpu::has_avx512_vnni());
#endif
}

TEST_CASE("heads of whole groups alone are read packed") {
  for (const int64_t size : {5, 20, 80, 96, 1088}) {
    CHECK_FALSE(cpu::codes_head_size(size));
  }
}

}  // namespace
}  // namespace spillway::attention_codes_test
