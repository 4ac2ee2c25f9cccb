// What a sequence makes of logits, alone: scores, stop tokens and numbers that are none.
#include "scheduler/sequence.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/collecting_sink.h"
#include "tests/support/tiny_shape.h"

namespace spillway::sequence_test {
namespace {

using test::CollectingSink;

constexpr int32_t kVocabulary = 100;

struct Alone {
  explicit Alone(Request request)
      : sequence(RequestId{1}, std::move(request), sink, test::tiny_shape(), {}, 0, 0.0) {
    sequence.admit(nullptr, {}, 0, 1, 1.0);
  }
  // Logits whose highest is `best`'s.
  void give(int64_t token, int32_t best, float bad = 0) {
    std::vector<float> row(kVocabulary, 0.0f);
    row[static_cast<size_t>(best)] = 5;
    row[7] += bad;
    sequence.take_logits(token, row, 2.0);
  }
  FinishReason reason() {
    REQUIRE(sequence.finished());
    return sequence.ending().reason;
  }

  std::shared_ptr<CollectingSink> sink = std::make_shared<CollectingSink>();
  Sequence sequence;
};

Request scored(std::vector<int32_t> prompt, int32_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  request.logprobs = request.prompt_logprobs = 1;
  return request;
}

// tiny_shape()'s end token is 2.
TEST_CASE("an end token is generated, scored and counted, and ends the sequence") {
  Alone alone(scored({5, 6, 7}, 4));
  for (int64_t token = 0; token < 3; ++token) alone.give(token, 2);
  CHECK(alone.reason() == FinishReason::kStop);
  CHECK(alone.sequence.ending().stop_token == 2);
  CHECK(alone.sequence.generated() == 1);
  CHECK(alone.sink->tokens == std::vector<int32_t>{2});
  CHECK(alone.sink->prompt_logprobs.size() == 3);
  REQUIRE(alone.sink->logprobs.size() == 1);
  CHECK(alone.sink->logprobs[0].logprob == Approx(5 - std::log(99 + std::exp(5.0))));
}

TEST_CASE("an end token before min_tokens is barred, and counts as none of them") {
  Request request = scored({5}, 4);
  request.min_tokens = 1;
  Alone alone(request);
  alone.give(0, 2);
  CHECK_FALSE(alone.sequence.finished());
  alone.sequence.end_sweep();
  alone.give(0, 2);
  CHECK(alone.reason() == FinishReason::kStop);
  CHECK(alone.sequence.generated() == 2);
}

TEST_CASE("logits that are no numbers are an error where a prompt is scored") {
  for (const float bad : {std::nanf(""), INFINITY}) {
    for (const int32_t max_tokens : {0, 1}) {
      Alone alone(scored({5, 6, 7}, max_tokens));
      alone.give(0, 9);
      CHECK_FALSE(alone.sequence.finished());
      alone.give(1, 9, bad);
      CHECK(alone.reason() == FinishReason::kError);
      CHECK(alone.sequence.ending().status.code() == Code::kCorruption);
      CHECK(alone.sequence.ending().status.message().find("token 7") != std::string_view::npos);
      CHECK(alone.sink->prompt_logprobs.empty());
    }
  }
  Alone possible(scored({5, 7, 7}, 0));  // What cannot come is a number: its logprob is -inf.
  possible.give(0, 9, -INFINITY);
  possible.give(1, 9);
  possible.give(2, 9);
  CHECK(possible.reason() == FinishReason::kLength);
  CHECK(possible.sink->prompt_logprobs[1].logprob == -INFINITY);
}

TEST_CASE("logits beyond the sampling vocabulary that are no numbers are an error of scoring") {
  const auto sink = std::make_shared<CollectingSink>();
  Request request = scored({5}, 3);
  request.prompt_logprobs = -1;
  Sequence sequence(RequestId{1}, request, sink, test::tiny_shape(), {}, 50, 0.0);
  sequence.admit(nullptr, {}, 0, 1, 1.0);
  std::vector<float> row(kVocabulary, 0.0f);
  row[60] = std::nanf("");
  sequence.take_logits(0, row, 2.0);
  REQUIRE(sequence.finished());
  CHECK(sequence.ending().reason == FinishReason::kError);
  CHECK(sink->tokens.empty());
}

}  // namespace
}  // namespace spillway::sequence_test
