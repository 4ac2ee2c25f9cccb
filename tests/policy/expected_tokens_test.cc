#include "policy/expected_tokens.h"

#include <catch2/catch.hpp>

namespace spillway::expected_tokens_test {
namespace {

TEST_CASE("before any sequence has ended it may become as long as it may") {
  ExpectedTokens expected;
  CHECK(expected.left(0, 512) == 256);  // Half of the mean, one end in as many tokens
  expected.add(5120, 0);                // Ten have come to their end without a stop.
  CHECK(expected.left(0, 512) == 512);
  CHECK(expected.left(500, 512) == 12);
  CHECK(expected.left(512, 512) == 0);
}

TEST_CASE("what has ended says how long others will be, whatever they have generated") {
  ExpectedTokens expected;
  expected.add(60 * 99 + 60 - 512, 98);
  CHECK(expected.left(0, 512) == 30);
  CHECK(expected.left(100, 512) == 30);
  CHECK(expected.left(490, 512) == 22);
  CHECK(expected.left(0, 8) == 8);
  CHECK(expected.left(0, 0) == 0);
}

}  // namespace
}  // namespace spillway::expected_tokens_test
