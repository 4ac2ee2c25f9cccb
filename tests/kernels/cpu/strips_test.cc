// How rows are cut into strips: whatever their number, none is left out, none is too high, and the
// strips' heights differ by one at most.
#include "kernels/cpu/strips.h"

#include <catch2/catch.hpp>

namespace spillway::strips_test {
namespace {

TEST_CASE("strips are as few as possible and as even as possible") {
  const int64_t most = GENERATE(3, 4, 6, 12);
  for (int64_t rows = 0; rows <= 96; ++rows) {
    INFO(rows << " rows, strips of " << most);
    const cpu::Strips strips(rows, most);
    REQUIRE(strips.count() == (rows + most - 1) / most);
    int64_t end = 0;
    for (int64_t i = 0; i < strips.count(); ++i) {
      REQUIRE(strips.first(i) == end);
      REQUIRE(strips.height(i) <= most);
      REQUIRE(strips.height(i) <= strips.height(0));
      REQUIRE(strips.height(i) >= strips.height(0) - 1);
      const int64_t behind = strips.end_of_height(i);
      REQUIRE(behind > i);
      REQUIRE(behind <= strips.count());
      REQUIRE(strips.height(behind - 1) == strips.height(i));
      REQUIRE((behind == strips.count() || strips.height(behind) < strips.height(i)));
      end += strips.height(i);
    }
    REQUIRE(end == rows);
  }
  const cpu::Strips thirteen(13, 12);
  CHECK(thirteen.height(0) == 7);
  CHECK(thirteen.height(1) == 6);
}

}  // namespace
}  // namespace spillway::strips_test
