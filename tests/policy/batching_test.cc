// Admission and micro-batches, each against its definition: one request, one sequence at a time.
#include "policy/batching.h"

#include <catch2/catch.hpp>
#include <random>

namespace spillway {
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

TEST_CASE("requests alike join a sweep as they would one by one") {
  Random random(1);
  for (int round = 0; round < 5000; ++round) {
    const SweepLimits limits{.block_sequences = random.upto(12),
                             .prefill_tokens = random.upto(100),
                             .kv_bytes = static_cast<uint64_t>(random.upto(300))};
    const SweepContents before{.sequences = random.upto(12) - 1,
                               .prompt_tokens = round % 3 == 0 ? 0 : random.upto(80),
                               .kv_bytes = static_cast<uint64_t>(random.upto(200) - 1),
                               .long_prompt = round % 5 == 0};
    const WaitingRequests next{.count = random.upto(10),
                               .prompt_tokens = random.upto(60),
                               .kv_bytes = static_cast<uint64_t>(random.upto(80) - 1)};
    SweepContents sweep = before;
    int64_t joined = 0;
    const int64_t half = limits.prefill_tokens / 2;
    const bool chunks = next.prompt_tokens > limits.prefill_tokens;
    const auto has_room = [&] {
      if (chunks) return !sweep.long_prompt && sweep.prompt_tokens <= half;
      const int64_t most = sweep.long_prompt ? half : limits.prefill_tokens;
      return sweep.prompt_tokens == 0 || sweep.prompt_tokens + next.prompt_tokens <= most;
    };
    while (joined < next.count && sweep.sequences < limits.block_sequences &&
           (next.kv_bytes == 0 || sweep.kv_bytes + next.kv_bytes <= limits.kv_bytes) &&
           has_room()) {
      ++joined;
      ++sweep.sequences;
      if (chunks) {
        sweep.long_prompt = true;
      } else {
        sweep.prompt_tokens += next.prompt_tokens;
      }
      sweep.kv_bytes += next.kv_bytes;
    }
    INFO("round " << round);
    CHECK(requests_admitted(next, before, limits) == joined);
  }
}

TEST_CASE("one prompt at a time goes in chunks, and others do not wait for its end") {
  const SweepLimits limits{.block_sequences = 9, .prefill_tokens = 100, .kv_bytes = 10};
  const WaitingRequests longer{.count = 3, .prompt_tokens = 250, .kv_bytes = 1};
  CHECK(requests_admitted(longer, {}, limits) == 1);
  CHECK(requests_admitted(longer, {.sequences = 1, .prompt_tokens = 50, .kv_bytes = 1}, limits) ==
        1);
  CHECK(requests_admitted(longer, {.sequences = 1, .prompt_tokens = 51, .kv_bytes = 1}, limits) ==
        0);
  const SweepContents beside{.sequences = 1, .kv_bytes = 1, .long_prompt = true};
  CHECK(requests_admitted(longer, beside, limits) == 0);
  CHECK(requests_admitted({.count = 8, .prompt_tokens = 20, .kv_bytes = 1}, beside, limits) == 2);
  CHECK(requests_admitted({.count = 8, .prompt_tokens = 90, .kv_bytes = 1}, beside, limits) == 1);
}

TEST_CASE("a chunk takes what whole prompts leave, and at least a quarter") {
  CHECK(chunk_tokens(250, 0, 100) == 100);
  CHECK(chunk_tokens(250, 40, 100) == 60);
  CHECK(chunk_tokens(250, 90, 100) == 25);
  CHECK(chunk_tokens(7, 0, 100) == 7);
  CHECK(chunk_tokens(7, 1, 1) == 1);
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
}  // namespace spillway
