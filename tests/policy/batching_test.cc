// Admission and micro-batches, each against its definition: one request, one sequence at a time.
#include "policy/batching.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

namespace spillway::batching_test {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t upto(int64_t most) {
    return 1 + static_cast<int64_t>(engine_() % static_cast<uint64_t>(most));
  }

 private:
  std::mt19937_64 engine_;
};

// The definition: whether one request joins, whole or in chunks.
AdmittedRequests one_joins(const WaitingRequests& next, const SweepContents& sweep,
                           const SweepLimits& limits) {
  if (sweep.sequences >= limits.block_sequences) return {};
  if (next.kv_bytes > 0 && sweep.kv_bytes + next.kv_bytes > limits.kv_bytes) return {};
  const bool beside = sweep.prompt_in_chunks > 0;
  const bool beside_long = sweep.prompt_in_chunks > limits.prefill_tokens;
  const int64_t owed = sweep.owed;
  const int64_t taken = sweep.prompt_tokens + owed, prompt = next.prompt_tokens;
  const int64_t target = limits.target(), most = limits.prefill_tokens;
  if (prompt > most) return {0, !beside && taken <= target / 2};
  const int64_t share = beside ? target / 2 : target, room = beside ? most / 2 : most;
  if (next.may_be_cut && !beside_long) {
    if (taken + prompt <= share) return {1, false};
    return {0, !beside && share - taken >= std::min<int64_t>(64, target)};
  }
  if (sweep.prompt_tokens == 0) return {owed > 0 && taken >= share ? 0 : 1, false};
  return {taken < share && sweep.prompt_tokens + prompt <= room ? 1 : 0, false};
}

TEST_CASE("requests alike join a sweep as they would one by one") {
  Random random(1);
  for (int round = 0; round < 20000; ++round) {
    SweepLimits limits{.block_sequences = random.upto(12),
                       .prefill_tokens = random.upto(round % 2 == 0 ? 100 : 1000),
                       .kv_bytes = static_cast<uint64_t>(random.upto(300))};
    if (round % 3 > 0) limits.prefill_target = random.upto(limits.prefill_tokens);
    SweepContents before{.sequences = random.upto(12) - 1,
                         .prompt_tokens = round % 4 == 0 ? 0 : random.upto(80),
                         .kv_bytes = static_cast<uint64_t>(random.upto(200) - 1)};
    if (round % 5 == 0) before.prompt_in_chunks = random.upto(2 * limits.prefill_tokens);
    if (limits.has_target()) before.owed = random.upto(120) - 60;
    const WaitingRequests next{.count = random.upto(10),
                               .prompt_tokens = random.upto(round % 2 == 0 ? 60 : 600),
                               .kv_bytes = static_cast<uint64_t>(random.upto(80) - 1),
                               .may_be_cut = limits.has_target() && random.upto(2) == 1};
    SweepContents sweep = before;
    AdmittedRequests joined;
    while (joined.count() < next.count) {
      const AdmittedRequests one = one_joins(next, sweep, limits);
      if (one.count() == 0) break;
      ++sweep.sequences;
      sweep.kv_bytes += next.kv_bytes;
      joined.whole += one.whole;
      if (one.in_chunks) {
        joined.in_chunks = true;
        break;
      }
      sweep.prompt_tokens += next.prompt_tokens;
    }
    INFO("round " << round);
    const AdmittedRequests together = requests_admitted(next, before, limits);
    CHECK(together.whole == joined.whole);
    CHECK(together.in_chunks == joined.in_chunks);
  }
}

TEST_CASE("one prompt at a time goes in chunks, and others do not wait for its end") {
  const SweepLimits limits{.block_sequences = 9, .prefill_tokens = 100, .kv_bytes = 10};
  const auto count = [&](const WaitingRequests& next, const SweepContents& sweep) {
    return requests_admitted(next, sweep, limits).count();
  };
  const WaitingRequests longer{.count = 3, .prompt_tokens = 250, .kv_bytes = 1};
  CHECK(requests_admitted(longer, {}, limits).in_chunks);
  CHECK(count(longer, {}) == 1);
  CHECK(count(longer, {.sequences = 1, .prompt_tokens = 50, .kv_bytes = 1}) == 1);
  CHECK(count(longer, {.sequences = 1, .prompt_tokens = 51, .kv_bytes = 1}) == 0);
  const SweepContents beside{.sequences = 1, .kv_bytes = 1, .prompt_in_chunks = 250};
  CHECK(count(longer, beside) == 0);
  CHECK(count({.count = 8, .prompt_tokens = 20, .kv_bytes = 1}, beside) == 2);
  CHECK(count({.count = 8, .prompt_tokens = 90, .kv_bytes = 1}, beside) == 1);
}

TEST_CASE("sweeps take the target in the mean, and all of it where prompts may be cut") {
  for (const int64_t prompt : {9, 40, 256, 300, 1000}) {
    for (const int64_t target : {100, 333, 700}) {
      for (const bool cut : {false, true}) {
        INFO("prompts of " << prompt << ", target " << target << (cut ? ", cut" : ""));
        const SweepLimits limits{.block_sequences = 1 << 20,
                                 .prefill_tokens = 1000,
                                 .prefill_target = target,
                                 .kv_bytes = 1};
        constexpr int64_t kSweeps = 200;
        const WaitingRequests next{.count = 1 << 20, .prompt_tokens = prompt, .may_be_cut = cut};
        int64_t all = 0, owed = 0, left = 0, sequences = 0;
        for (int64_t i = 0; i < kSweeps; ++i) {
          SweepContents sweep{.sequences = sequences, .owed = owed};
          if (left > 0) {
            const int64_t tokens = chunk_tokens(prompt - left, left, owed, limits);
            if (tokens == left) {
              sweep.prompt_tokens = tokens;
              left = 0;
            } else {
              sweep.prompt_in_chunks = prompt;
            }
          }
          const AdmittedRequests admitted = requests_admitted(next, sweep, limits);
          CHECK((cut || !admitted.in_chunks));
          sequences += admitted.count();
          sweep.prompt_tokens += admitted.whole * prompt;
          if (admitted.in_chunks) left = prompt;
          if (left > 0) {
            const int64_t tokens =
                chunk_tokens(prompt - left, left, owed + sweep.prompt_tokens, limits);
            sweep.prompt_tokens += tokens;
            left -= tokens;
          }
          CHECK(sweep.prompt_tokens <= limits.prefill_tokens);
          // Uncut, a prompt's tokens beyond the target at most.
          CHECK(sweep.prompt_tokens <= (cut ? target + 64 : target + 64 + prompt));
          all += sweep.prompt_tokens;
          owed = owed_after(sweep, limits);
        }
        const double mean = static_cast<double>(all) / kSweeps;
        CHECK(mean >= 0.97 * static_cast<double>(target));
        CHECK(mean <= 1.03 * static_cast<double>(target) + 5);
      }
    }
  }
}

TEST_CASE("a chunk takes what whole prompts leave, and at least a quarter") {
  const SweepLimits hundred{.prefill_tokens = 100};
  CHECK(chunk_tokens(0, 250, 0, hundred) == 100);
  CHECK(chunk_tokens(0, 250, 30, hundred) == 70);
  CHECK(chunk_tokens(1, 250, 40, hundred) == 60);
  CHECK(chunk_tokens(1, 250, 90, hundred) == 25);
  CHECK(chunk_tokens(0, 250, 90, hundred) == 25);
  CHECK(chunk_tokens(0, 2500, 900, {.prefill_tokens = 1000}) == 100);
  CHECK(chunk_tokens(0, 2500, 999, {.prefill_tokens = 1000}) == 64);
  CHECK(chunk_tokens(1, 2500, 999, {.prefill_tokens = 1000}) == 250);
  CHECK(chunk_tokens(0, 7, 0, hundred) == 7);
  CHECK(chunk_tokens(0, 7, 1, {.prefill_tokens = 1}) == 1);
}

TEST_CASE("chunks of a long prompt take equally much arithmetic") {
  constexpr double kPositions = 14848;  // Llama-3.2-1B
  const SweepLimits limits{.prefill_tokens = 2048, .positions_per_token = kPositions};
  const auto work = [&](double done, double tokens) {
    return tokens * (1 + (done + tokens / 2) / kPositions);
  };
  const double first = work(0, 2048);
  int64_t before = 2048;
  for (int64_t done = 2048; done < 120000; done += 4999) {
    const int64_t tokens = chunk_tokens(done, 200000, 0, limits);
    CHECK(tokens < before);
    CHECK(work(static_cast<double>(done), static_cast<double>(tokens)) <= first);
    CHECK(work(static_cast<double>(done), static_cast<double>(tokens + 1)) > first);
    before = tokens;
  }
  CHECK(before < 2048 / 4);
  // The beginning is a whole sweep, whatever is rounded; beside whole prompts the chunk is shorter.
  CHECK(chunk_tokens(0, 200000, 0, limits) == 2048);
  CHECK(chunk_tokens(50000, 200000, 1024, limits) < chunk_tokens(50000, 200000, 0, limits));
  // No chunk is so short that sweeps do nothing else than go through the weights.
  CHECK(chunk_tokens(int64_t{1} << 30, 200000, 0, limits) == 64);
  CHECK(chunk_tokens(int64_t{1} << 30, 5, 0, limits) == 5);
  CHECK(chunk_tokens(int64_t{1} << 30, 200000, 0,
                     {.prefill_tokens = 7, .positions_per_token = kPositions}) == 7);
}

TEST_CASE("positions per token are the multiply-adds of linear layers over those of attention") {
  ModelShape shape;  // Llama-3.2-1B's layers
  shape.layers = 16;
  shape.hidden = shape.embedding = 2048;
  shape.heads = 32;
  shape.kv_heads = 8;
  shape.head_size = 64;
  shape.mlp = 8192;
  shape.vocabulary = 1000;
  shape.positions = 131072;
  shape.mlp_kind = MlpKind::kGated;
  const double linear = 2048.0 * (2048 + 2 * 512) + 2048.0 * 2048 + 3 * 2048.0 * 8192;
  CHECK(positions_per_token(shape) == linear / (2 * 2048));
  // Attention of layers with a window does not grow.
  set_window(4096, {1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0}, shape);
  CHECK(positions_per_token(shape) == linear * 4 / (2 * 2048));
  set_window(4096, {}, shape);
  CHECK(positions_per_token(shape) == 0);
}

TEST_CASE("sequences added together are cut as they would be one by one") {
  Random random(2);
  for (int round = 0; round < 3000; ++round) {
    const MicroBatchLimits limits{.rows = random.upto(100), .sequences = random.upto(8) - 1};
    std::vector<int64_t> rows;
    std::vector<MicroBatch> together;
    for (int64_t group = random.upto(5); group > 0; --group) {
      const int64_t count = random.upto(12), each = random.upto(round % 2 == 0 ? 120 : 5);
      rows.insert(rows.end(), static_cast<size_t>(count), each);
      add_to_micro_batches(count, each, limits, &together);
    }
    // The definition: a micro-batch is closed when the next sequence would exceed a limit.
    std::vector<MicroBatch> expected;
    for (size_t i = 0; i < rows.size(); ++i) {
      const bool full =
          expected.empty() || expected.back().rows + rows[i] > limits.rows ||
          (limits.sequences > 0 && static_cast<int64_t>(expected.back().items) == limits.sequences);
      if (full) expected.push_back({i, 0, 0});
      ++expected.back().items;
      expected.back().rows += rows[i];
    }
    INFO("round " << round);
    REQUIRE(together.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      CHECK(together[i].first_item == expected[i].first_item);
      CHECK(together[i].items == expected[i].items);
      CHECK(together[i].rows == expected[i].rows);
    }
  }
}

}  // namespace
}  // namespace spillway::batching_test
