// Expected waits by what has become free so far.
#include "server/http/pace.h"

#include <catch2/catch.hpp>

namespace spillway::pace_test {
namespace {

TEST_CASE("a steady pace is the expected wait, in bursts too") {
  for (const int burst : {1, 4, 100}) {
    Pace pace;
    pace.start(100);
    double now = 100;
    for (int i = 0; i < 400; ++i) {
      if (i % burst == 0) now += 2.0 * burst;  // Two seconds a unit in the mean
      pace.freed(1, now);
    }
    INFO(burst);
    CHECK(pace.seconds_for(1, now) == Approx(2).epsilon(0.1));
    CHECK(pace.seconds_for(10, now) == Approx(10 * pace.seconds_for(1, now)));
  }
}

TEST_CASE("before anything became free the wait so far is all that is known") {
  Pace pace;
  CHECK(pace.seconds_for(1, 500) == 0);
  pace.start(500);
  CHECK(pace.seconds_for(1, 530) == 30);
}

TEST_CASE("a pace that slows down is noticed while one waits") {
  Pace pace;
  pace.start(10);
  for (int i = 1; i <= 50; ++i) pace.freed(1, 10 + i);
  CHECK(pace.seconds_for(1, 60) == Approx(1));
  CHECK(pace.seconds_for(1, 160) > 10);
  pace.start(1000);  // Idle since then, which does not count
  CHECK(pace.seconds_for(1, 1000) == Approx(1));
}

TEST_CASE("a header has whole seconds, below what clients ignore") {
  CHECK(retry_after(0) == 1);
  CHECK(retry_after(1.2) == 2);
  CHECK(retry_after(1e9) == 59);
}

}  // namespace
}  // namespace spillway::pace_test
