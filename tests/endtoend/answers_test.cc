// What the comparison of answers in these tests lets pass, and what not.
#include "tests/support/answers.h"

#include <catch2/catch.hpp>

namespace spillway::answers_test {
namespace {

using test::Answer;
using test::difference;

constexpr double kTolerance = 0.1;

// Two tokens at each step: `token` and, a little less likely, the one above it.
Answer answer(const std::vector<int32_t>& tokens, float gap = 1, float shift = 0) {
  Answer made{tokens, {}};
  for (const int32_t token : tokens) {
    const float best = -0.5f + shift;
    made.logprobs.push_back({best, 0, {{token, best}, {token + 1, best - gap}}});
  }
  return made;
}

std::string between(const Answer& expected, const Answer& found, double tolerance = kTolerance,
                    float temperature = 0, KvRuleKind kind = KvRuleKind::kFull) {
  Request request;
  request.sampling.temperature = temperature;
  request.kv.kind = kind;
  return difference({request}, {expected}, {found}, tolerance);
}

TEST_CASE("without a tolerance answers are equal or not") {
  const Answer one = answer({5, 6, 7});
  CHECK(between(one, answer({5, 6, 7}, 1, 9), 0).empty());
  CHECK_FALSE(between(one, answer({5, 6, 8}), 0).empty());
  CHECK_FALSE(between(one, answer({5, 6}), 0).empty());
  CHECK_FALSE(between(one, answer({5, 6, 7, 8}), 0).empty());
  CHECK_FALSE(difference({Request()}, {one}, {}, 0).empty());
}

TEST_CASE("within a tolerance log-probabilities of the same tokens are near each other") {
  const Answer one = answer({5, 6, 7, 8});
  CHECK(between(one, answer({5, 6, 7, 8}, 1, 0.09f)).empty());
  CHECK_FALSE(between(one, answer({5, 6, 7, 8}, 1, 0.11f)).empty());
  CHECK_FALSE(between(one, answer({5, 6, 7})).empty());
}

TEST_CASE("within a tolerance greedy answers part where two tokens are about as likely") {
  const Answer sure = answer({5, 6, 7, 8}), unsure = answer({5, 6, 7, 8}, 0.15f);
  const Answer other = answer({5, 6, 8, 1});
  CHECK(between(unsure, other).empty());
  CHECK_FALSE(between(sure, other).empty());
  CHECK_FALSE(between(unsure, answer({5, 6, 30, 1})).empty());  // Not even among the best
  CHECK_FALSE(between(unsure, answer({6, 6, 7, 8})).empty());   // Nothing was compared.
  CHECK(between(sure, other, kTolerance, 1).empty());           // A draw
}

TEST_CASE("within a tolerance only the first token of a rule by scores is compared") {
  const Answer one = answer({5, 6, 7, 8});
  CHECK(between(one, answer({5, 9, 9, 9}), kTolerance, 0, KvRuleKind::kH2o).empty());
  CHECK_FALSE(between(one, answer({9, 6, 7, 8}), kTolerance, 0, KvRuleKind::kH2o).empty());
  CHECK_FALSE(between(one, answer({5, 9, 9, 9}), kTolerance, 0, KvRuleKind::kWindow).empty());
}

}  // namespace
}  // namespace spillway::answers_test
