// Ranges of a file: the first that fits, neighbours merged, and never one byte given out twice.
#include "offload/io/range_allocator.h"

#include <catch2/catch.hpp>
#include <random>
#include <utility>
#include <vector>

namespace spillway::range_allocator_test {
namespace {

TEST_CASE("the first free range that is large enough is reserved") {
  RangeAllocator ranges(100);
  CHECK(ranges.reserve(40) == 0);
  CHECK(ranges.reserve(20) == 40);
  CHECK(ranges.reserve(40) == 60);
  CHECK_FALSE(ranges.reserve(1));
  CHECK(ranges.reserved() == 100);
  ranges.release(40, 20);
  ranges.release(0, 10);
  CHECK(ranges.reserve(15) == 40);  // The ten bytes at 0 are too few.
  CHECK(ranges.reserve(5) == 0);
  CHECK(ranges.reserved() == 90);
  ranges.verify();
}

TEST_CASE("a released range merges with free neighbours on both sides") {
  RangeAllocator ranges(90);
  for (int i = 0; i < 3; ++i) REQUIRE(ranges.reserve(30));
  const bool left_first = GENERATE(true, false);
  ranges.release(left_first ? 0 : 60, 30);
  ranges.release(left_first ? 60 : 0, 30);
  CHECK_FALSE(ranges.reserve(31));
  ranges.release(30, 30);
  ranges.verify();
  CHECK(ranges.reserve(90) == 0);
}

TEST_CASE("no bytes are always there and take none") {
  RangeAllocator ranges(0);
  CHECK(ranges.reserve(0) == 0);
  CHECK_FALSE(ranges.reserve(1));
  ranges.release(0, 0);
  ranges.verify();
}

TEST_CASE("ranges that are reserved at once never overlap") {
  constexpr uint64_t kBytes = 200;
  const auto seed = GENERATE(range(uint64_t{0}, uint64_t{20}));
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  RangeAllocator ranges(kBytes);
  std::vector<bool> taken(kBytes);
  std::vector<std::pair<uint64_t, uint64_t>> held;
  for (int step = 0; step < 500; ++step) {
    if (random() % 2 == 0 && !held.empty()) {
      const size_t which = random() % held.size();
      const auto [offset, bytes] = held[which];
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
      ranges.release(offset, bytes);
      for (uint64_t i = offset; i < offset + bytes; ++i) taken[i] = false;
    } else {
      const uint64_t bytes = 1 + random() % 40;
      const auto offset = ranges.reserve(bytes);
      uint64_t longest = 0, run = 0;
      for (const bool one : taken) longest = std::max(longest, run = one ? 0 : run + 1);
      REQUIRE(offset.has_value() == (bytes <= longest));
      if (!offset) continue;
      for (uint64_t i = *offset; i < *offset + bytes; ++i) {
        REQUIRE_FALSE(taken[i]);
        taken[i] = true;
      }
      held.emplace_back(*offset, bytes);
    }
    ranges.verify();
  }
}

}  // namespace
}  // namespace spillway::range_allocator_test
