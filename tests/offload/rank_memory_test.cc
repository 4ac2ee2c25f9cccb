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
  const auto of = [&](int64_t rank, int64_t ranks, LayerRange layers, bool in_host) {
    return rank_memory(table(rank, ranks), layers, in_host);
  };
  const LayerRange all = all_layers(shape);
  const RankMemory first = of(0, 2, all, true), second = of(1, 2, all, true);
  CHECK(first.is_first);
  CHECK_FALSE(second.is_first);
  CHECK(first.of_first == second.of_first);
  CHECK(first.of_first >= static_cast<uint64_t>(shape.vocabulary * shape.hidden) * sizeof(float));
  CHECK(of(0, 2, all, false).of_first == 0);
  CHECK(of(0, 1, all, true).of_first == 0);
  // Of stages the first alone has embeddings, and the weights are those of its layers.
  const LayerRange front{0, 1}, back{1, shape.layers - 1};
  for (const int64_t rank : {0, 1}) {
    CHECK(of(rank, 2, front, true).of_first == first.of_first);
    CHECK(of(rank, 2, back, true).of_first == 0);
    CHECK(of(rank, 2, front, true).weights + of(rank, 2, back, true).weights == first.weights);
  }
}

}  // namespace
}  // namespace spillway::rank_memory_test
