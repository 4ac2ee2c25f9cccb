// Frequencies and angles of rotary positions, by hand.
#include "kernels/base/rotary.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace spillway::rotary_test {
namespace {

TEST_CASE("frequencies fall from 1 by equal factors") {
  const auto frequencies = rotary_frequencies(10000, 8);
  REQUIRE(frequencies.size() == 4);
  CHECK(frequencies[0] == 1.0f);
  CHECK(frequencies[1] == Approx(0.1f));
  CHECK(frequencies[2] == Approx(0.01f));
  CHECK(frequencies[3] == Approx(0.001f));
}

TEST_CASE("a row has the scaled cosines of its angles, then their sines") {
  const std::vector<float> frequencies = {1.0f, 0.25f};
  std::vector<float> row(4);
  fill_rotary_row(frequencies, 1.5f, 7, row);
  CHECK(row[0] == Approx(1.5 * std::cos(7.0)));
  CHECK(row[1] == Approx(1.5 * std::cos(1.75)));
  CHECK(row[2] == Approx(1.5 * std::sin(7.0)));
  CHECK(row[3] == Approx(1.5 * std::sin(1.75)));
}

TEST_CASE("frequencies change with a sequence's length where the scaling says so") {
  Rotary rotary;
  rotary.dims = 4;
  rotary.frequencies = rotary_frequencies(10000, 4);
  std::vector<float> scratch;
  const auto at = [&](int64_t length) {
    const auto found = frequencies_at(rotary, length, &scratch);
    return std::vector<float>(found.begin(), found.end());
  };
  CHECK(at(100000) == rotary.frequencies);
  rotary.long_frequencies = {0.5f, 0.125f};
  rotary.switch_length = 64;
  CHECK(at(64) == rotary.frequencies);
  CHECK(at(65) == rotary.long_frequencies);
  rotary.long_frequencies.clear();
  rotary.dynamic_factor = 2;
  rotary.theta = 10000;
  CHECK(at(64) == rotary.frequencies);
  // theta (2 * 128 / 64 - 1)^(4 / 2) = 9 theta
  CHECK(at(128) == rotary_frequencies(90000, 4));
}

}  // namespace
}  // namespace spillway::rotary_test
