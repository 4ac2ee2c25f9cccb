#include "policy/prefill_target.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace spillway::prefill_target_test {
namespace {

MeasuredSweep sweep(double waiting_share) {
  return {.decoding = 60,
          .prompt_tokens = 40,
          .seconds = 2,
          .waiting_seconds = 2 * waiting_share,
          .limited_by_target = true};
}

TEST_CASE("waits raise the target, and without them it sinks to the planned one") {
  PrefillTarget target(100, 1000);
  CHECK(target.tokens() == 100);
  target.correct(sweep(0.03));
  CHECK(target.tokens() == 100);
  // 100 rows in half of the time: 100 more would fit, of which a quarter is added.
  target.correct(sweep(0.5));
  CHECK(target.tokens() == 125);
  target.correct(sweep(0.03));
  CHECK(target.tokens() == 125);
  int64_t before = target.tokens();
  for (int i = 0; i < 10; ++i) {
    target.correct(sweep(0));
    CHECK(target.tokens() <= before);
    before = target.tokens();
  }
  CHECK(target.tokens() == 100);
}

TEST_CASE("the target at most doubles at once and ends at a sweep's prompt tokens") {
  PrefillTarget target(100, 350);
  target.correct(sweep(1));
  CHECK(target.tokens() == 200);
  target.correct(sweep(7));  // A clock that jumps
  CHECK(target.tokens() == 350);
  CHECK(PrefillTarget(500, 350).tokens() == 350);
}

TEST_CASE("sweeps that the target did not limit tell nothing") {
  PrefillTarget target(100, 1000);
  MeasuredSweep one = sweep(0.5);
  one.limited_by_target = false;
  target.correct(one);
  one = sweep(0.5);
  one.decoding = 0;
  target.correct(one);
  one = sweep(0.5);
  one.prompt_tokens = 0;
  target.correct(one);
  target.correct({});
  CHECK(target.tokens() == 100);
  PrefillTarget none(0, 1000);
  none.correct(sweep(0.5));
  CHECK(none.tokens() == 0);
}

// A machine on which sweeps read `read` seconds, and a row takes a hundredth of one.
TEST_CASE("the target settles where arithmetic takes as long as reading") {
  PrefillTarget target(20, 4000);
  for (int i = 0; i < 200; ++i) {
    const int64_t tokens = target.tokens();
    const double arithmetic = 0.01 * static_cast<double>(50 + tokens), read = 4;
    target.correct({.decoding = 50,
                    .prompt_tokens = tokens,
                    .seconds = std::max(arithmetic, read),
                    .waiting_seconds = std::max(0.0, read - arithmetic),
                    .limited_by_target = true});
  }
  CHECK(target.tokens() > 0.9 * 350);
  CHECK(target.tokens() < 1.05 * 350);
}

}  // namespace
}  // namespace spillway::prefill_target_test
