// Scores of packed 4-bit keys and sums of packed values, against their definition.
#include "kernels/cpu/attention_q4.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/kv_layout.h"
#include "tests/support/random_data.h"
#include "tests/support/skip.h"

namespace spillway::attention_q4_test {
namespace {

using test::random_floats;

constexpr size_t kRows = kKvBlockRows;

// A run of 16 rows, as they are stored and as they are read.
struct PackedRun {
  size_t size;
  std::vector<std::byte> bytes;
  std::vector<float> rows;

  PackedRun(size_t head_size, uint64_t seed)
      : size(head_size),
        bytes(kRows * format_row_bytes(Format::kQ4, static_cast<int64_t>(size))),
        rows(random_floats(static_cast<int64_t>(kRows * size), seed)) {
    // Rows and groups differ in range and offset.
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto group = static_cast<float>(i / 64);
      rows[i] = rows[i] * (1 + group) + std::sin(group);
    }
    for (size_t r = 0; r < kRows; ++r) {
      const std::span<float> row(rows.data() + r * size, size);
      pack_quantized_row(Format::kQ4, row, at(r));
      unpack_quantized_row(Format::kQ4, at(r), row);
    }
  }
  std::byte* at(size_t row) { return bytes.data() + row * bytes.size() / kRows; }
};

// Queries of any scale, and what becomes of them.
struct Queries {
  std::vector<std::vector<float>> heads;
  std::vector<std::vector<cpu::Q4QueryGroup>> rounded;
  std::vector<const cpu::Q4QueryGroup*> at;

  Queries(size_t size, size_t count, uint64_t seed) {
    for (size_t h = 0; h < count; ++h) {
      const float deviation = h % 2 == 0 ? 1.0f : 1e-4f;
      heads.push_back(random_floats(static_cast<int64_t>(size), seed + h, deviation));
      rounded.emplace_back(size / cpu::kQ4Group);
      round();
    }
    for (const auto& one : rounded) at.push_back(one.data());
  }
  void round() {
    cpu::round_q4_query(heads.back().data(), heads.back().size(), rounded.back().data());
  }
};

std::vector<std::vector<float>> dot(PackedRun& run, const Queries& queries) {
  std::vector<std::vector<float>> scores(queries.at.size(), std::vector<float>(kRows, NAN));
  std::vector<float*> to;
  for (auto& head : scores) to.push_back(head.data());
  cpu::dot_q4_run(run.bytes.data(), run.size, to.size(), queries.at.data(), to.data());
  return scores;
}

bool skipped() {
  if (cpu::attends_packed_q4(64)) return false;
  test::skip("this CPU has no AVX-512 VNNI");
  return true;
}

TEST_CASE("scores of packed keys agree with their definition to float32's precision") {
  if (skipped()) return;
  const auto size = static_cast<size_t>(GENERATE(64, 128, 192, 256, 1024));
  const auto heads = static_cast<size_t>(GENERATE(1, 2, 4, 7));
  INFO("head size " << size << ", heads " << heads);
  PackedRun run(size, 1);
  const Queries queries(size, heads, 2);
  const auto scores = dot(run, queries);
  for (size_t h = 0; h < heads; ++h) {
    for (size_t r = 0; r < kRows; ++r) {
      double expected = 0, terms = 0;
      for (size_t i = 0; i < size; ++i) {
        const double term = double{queries.heads[h][i]} * double{run.rows[r * size + i]};
        expected += term;
        terms += std::abs(term);
      }
      INFO("head " << h << " row " << r);
      REQUIRE(std::abs(scores[h][r] - expected) <= 3e-7 * terms);
    }
  }
  // Whoever is beside it.
  for (size_t h = 0; h < heads; ++h) {
    Queries alone = queries;
    alone.at = {queries.at[h]};
    CHECK(dot(run, alone).front() == scores[h]);
  }
}

TEST_CASE("NaN and infinities in queries and packed rows become NaN, zeros zeros") {
  if (skipped()) return;
  PackedRun run(128, 3);
  Queries queries(128, 1, 4);
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
  pack_quantized_row(Format::kQ4, damaged, run.at(9));
  const auto scores = scores_of_run();
  for (size_t r = 0; r < kRows; ++r) CHECK(std::isnan(scores[r]) == (r == 9));
}

TEST_CASE("sums of packed values agree with their definition, of the rows in use alone") {
  if (skipped()) return;
  const auto size = static_cast<size_t>(GENERATE(64, 128, 192, 1024));
  const auto heads = static_cast<size_t>(GENERATE(1, 2, 3, 4, 9));
  const auto rows = static_cast<size_t>(GENERATE(1, 7, 16));
  INFO("head size " << size << ", heads " << heads << ", rows " << rows);
  PackedRun run(size, 6);
  const std::vector<float> damaged(size, NAN);
  for (size_t r = rows; r < kRows; ++r) pack_quantized_row(Format::kQ4, damaged, run.at(r));
  std::vector<std::vector<float>> weights;
  for (size_t h = 0; h < heads; ++h) weights.push_back(random_floats(kRows, 7 + h));
  const auto sums_of = [&](size_t first, size_t count) {
    std::vector<std::vector<float>> sums(count, std::vector<float>(size, 1.0f)),
        minima(count, std::vector<float>(size / 64 * kRows));
    std::vector<const float*> from;
    std::vector<float*> to, lowest;
    for (size_t h = 0; h < count; ++h) {
      from.push_back(weights[first + h].data());
      to.push_back(sums[h].data());
      lowest.push_back(minima[h].data());
    }
    cpu::sum_q4_run(run.bytes.data(), size, rows, count, from.data(), to.data(), lowest.data());
    for (size_t h = 0; h < count; ++h) cpu::add_q4_minima(minima[h].data(), size, to[h]);
    return sums;
  };
  const auto sums = sums_of(0, heads);
  for (size_t h = 0; h < heads; ++h) {
    for (size_t i = 0; i < size; ++i) {
      double expected = 1, terms = 1;
      for (size_t r = 0; r < rows; ++r) {
        const double term = double{weights[h][r]} * double{run.rows[r * size + i]};
        expected += term;
        terms += std::abs(double{weights[h][r]}) * static_cast<double>(4 + 4 * size / 64 * kRows);
      }
      INFO("head " << h << " number " << i);
      REQUIRE(std::abs(sums[h][i] - expected) <= 3e-7 * terms);
    }
    CHECK(sums_of(h, 1).front() == sums[h]);
  }
}

TEST_CASE("heads of whole groups alone are read packed") {
  for (const int64_t size : {5, 20, 80, 96, 1088}) CHECK_FALSE(cpu::attends_packed_q4(size));
}

}  // namespace
}  // namespace spillway::attention_q4_test
