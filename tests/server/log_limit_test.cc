// Which lines a log leaves out when everything fails at once, and when it says so.
#include "server/log_limit.h"

#include <catch2/catch.hpp>
#include <string>

namespace spillway::log_limit_test {
namespace {

using LeftOut = LogLimit::LeftOut;

std::string numbered(int i) {
  return "error " + std::to_string(i);
}

TEST_CASE("ten lines of errors a second are written, and the next one says how many were not") {
  LogLimit limit;
  LeftOut told;
  int written = 0;
  for (int i = 0; i < 25; ++i) written += limit.admits(numbered(i), 100.0, &told) ? 1 : 0;
  CHECK(written == 10);
  CHECK_FALSE(limit.admits("in the same second", 100.9, &told));
  CHECK(limit.tell(100.9).others == 0);  // The second is not over.
  REQUIRE(limit.admits("in the next one", 101.0, &told));
  CHECK(told.others == 16);
  CHECK(told.repeats == 0);
  REQUIRE(limit.admits("and another", 101.1, &told));
  CHECK(told.others == 0);  // Told once
}

TEST_CASE("a line that is no error tells it, too, once the second is over") {
  LogLimit limit;
  LeftOut told;
  for (int i = 0; i < 12; ++i) (void)limit.admits(numbered(i), 7, &told);
  CHECK(limit.tell(7.5).others == 0);
  CHECK(limit.tell(8).others == 2);
  CHECK(limit.tell(9).others == 0);
}

TEST_CASE("an error that repeats is counted, whatever else is written between") {
  LogLimit limit;
  LeftOut told;
  REQUIRE(limit.admits("read at 4096: Input/output error", 0, &told));
  for (int i = 1; i <= 299; ++i) {
    CHECK_FALSE(limit.admits("read at 4096: Input/output error", i * 0.01, &told));
    CHECK(limit.tell(i * 0.01).repeats == 0);
  }
  REQUIRE(limit.admits("something else", 3.5, &told));
  CHECK(told.repeats == 299);
  CHECK(told.others == 0);
}

TEST_CASE("repeats are told after some seconds by any line, and the error is then written again") {
  LogLimit limit;
  LeftOut told;
  REQUIRE(limit.admits("lost", 0, &told));
  CHECK_FALSE(limit.admits("lost", 1, &told));
  CHECK(limit.tell(kLogRepeatSeconds - 0.1).repeats == 0);
  CHECK(limit.tell(kLogRepeatSeconds).repeats == 1);
  REQUIRE(limit.admits("lost", kLogRepeatSeconds + 1, &told));
  CHECK(told.repeats == 0);
}

}  // namespace
}  // namespace spillway::log_limit_test
