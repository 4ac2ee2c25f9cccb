#include "policy/stage_split.h"

#include <catch2/catch.hpp>

namespace spillway::stage_split_test {
namespace {

constexpr uint64_t kMuch = uint64_t{1} << 40;

TEST_CASE("equal stages get equal runs of layers, uneven ones by their speed") {
  const StageMachine one{1, kMuch, 0, 0}, fast{3, kMuch, 0, 0};
  CHECK(split_layers(32, 10, std::vector{one, one}) == std::vector<int64_t>{16, 16});
  CHECK(split_layers(32, 10, std::vector{one, fast}) == std::vector<int64_t>{8, 24});
  CHECK(split_layers(2, 10, std::vector{one, fast}) == std::vector<int64_t>{1, 1});
  CHECK(split_layers(7, 10, std::vector{one}) == std::vector<int64_t>{7});
}

TEST_CASE("a stage with the head has fewer layers") {
  const StageMachine one{1, kMuch, 0, 0}, last{1, kMuch, 0, 4};
  CHECK(split_layers(32, 10, std::vector{one, last}) == std::vector<int64_t>{18, 14});
}

TEST_CASE("a stage streams layers only where others would take longer with them in memory") {
  const StageMachine small{1, 50, 0, 0}, large{1, 300, 0, 0};
  CHECK(split_layers(32, 10, std::vector{small, large}) == std::vector<int64_t>{7, 25});  // 5 + 20
  const StageMachine less{1, 50, 20, 0};
  CHECK(split_layers(12, 10, std::vector{small, large}) == std::vector<int64_t>{5, 7});
  CHECK(split_layers(12, 10, std::vector{less, large}) == std::vector<int64_t>{3, 9});
}

TEST_CASE("what fits nowhere is streamed by all alike") {
  const StageMachine small{1, 50, 0, 0};
  CHECK(split_layers(32, 10, std::vector{small, small}) == std::vector<int64_t>{16, 16});
}

}  // namespace
}  // namespace spillway::stage_split_test
