#include "offload/rank_memory.h"

#include <catch2/catch.hpp>

#include "kernels/base/rank_shape.h"
#include "tests/support/tiny_shape.h"

namespace spillway::rank_memory_test {
namespace {

TEST_CASE("ranks divide memory evenly, but for what the first alone has") {
  const RankMemory first{4, 100, 500, true}, other{4, 100, 500, false};
  CHECK(first.share_of(900) == 300);
  CHECK(other.share_of(900) == 200);
  // A half of the weights fits, and a half of what the first has.
  CHECK(first.share_of(250) == 100);
  CHECK(other.share_of(250) == 50);
  CHECK(first.whole_of(300) == 900);
  CHECK(other.whole_of(200) == 900);
  for (uint64_t own = 1; own < 400; ++own) {
    for (const RankMemory& memory : {first, other}) {
      const uint64_t whole = memory.whole_of(own);
      CHECK(memory.share_of(whole) >= own);
      CHECK(memory.share_of(whole - 1) < own);
    }
  }
  const RankMemory alone;
  CHECK(alone.share_of(77) == 77);
  CHECK(alone.whole_of(77) == 77);
}

TEST_CASE("what the first rank alone has are the embeddings, where weights are in host memory") {
  const ModelShape shape = test::tiny_shape();
  const auto table = [&](int64_t rank, int64_t ranks) {
    return plan_model_file(rank_shape(shape, rank, ranks).value(), Format::kF32,
                           MatrixLayout::kPanels16);
  };
  const RankMemory first = rank_memory(table(0, 2), true), second = rank_memory(table(1, 2), true);
  CHECK(first.is_first);
  CHECK_FALSE(second.is_first);
  CHECK(first.of_first == second.of_first);
  CHECK(first.of_first >= static_cast<uint64_t>(shape.vocabulary * shape.hidden) * sizeof(float));
  CHECK(rank_memory(table(0, 2), false).of_first == 0);
  CHECK(rank_memory(table(0, 1), true).of_first == 0);
}

}  // namespace
}  // namespace spillway::rank_memory_test
