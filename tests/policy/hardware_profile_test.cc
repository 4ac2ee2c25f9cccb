// Figures from samples.
#include "policy/hardware_profile.h"

#include <catch2/catch.hpp>

namespace spillway::hardware_profile_test {
namespace {

TEST_CASE("a figure is the median of its samples, with their spread") {
  const Figure odd = figure_of({5, 1, 3});
  CHECK(odd.value == 3);
  CHECK(odd.low == 1);
  CHECK(odd.high == 5);
  CHECK(odd.samples == 3);
  CHECK(odd.source.empty());
  CHECK(figure_of({4, 1, 2, 9}).value == 3);
  const Figure one = figure_of({7});
  CHECK(one.value == 7);
  CHECK(one.low == 7);
  CHECK(one.high == 7);
  CHECK(one.samples == 1);
}

}  // namespace
}  // namespace spillway::hardware_profile_test
