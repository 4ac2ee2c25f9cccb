#include "kernels/base/rank_shape.h"

#include <catch2/catch.hpp>
#include <map>

#include "kernels/base/weights.h"
#include "tests/support/tiny_shape.h"

namespace spillway::rank_shape_test {
namespace {

ModelShape gated() {
  ModelShape shape = test::rotary_shape(2);
  shape.heads = 8;
  shape.kv_heads = 4;
  shape.head_size = 8;
  shape.hidden = shape.embedding = 64;
  shape.mlp = 96;
  shape.mlp_kind = MlpKind::kGated;
  shape.set_biases(true);
  return shape;
}

TEST_CASE("ranks have all rows of a layer between them, each once, and what all need whole") {
  const ModelShape whole = gated();
  for (const int64_t ranks : {1, 2, 4}) {
    for (const WeightSpec& spec : weight_specs(whole)) {
      INFO(role_name(spec.role) << ", " << ranks << " ranks");
      const bool vector = spec.kind == WeightKind::kVector;
      const int64_t rows = vector ? spec.columns : spec.rows;
      std::map<int64_t, int> times;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        int64_t own = 0;
        for (const RowSpan& span : rank_rows(whole, spec, rank, ranks)) {
          own += span.count;
          for (int64_t row = span.first; row < span.first + span.count; ++row) ++times[row];
        }
        const ModelShape shape = rank_shape(whole, rank, ranks).value();
        for (const WeightSpec& of_rank : weight_specs(shape)) {
          if (of_rank.role != spec.role || of_rank.layer != spec.layer) continue;
          CHECK(own == (vector ? of_rank.columns : of_rank.rows));
          if (!vector) CHECK(of_rank.columns == spec.columns);  // Sums are whole.
        }
      }
      CHECK(static_cast<int64_t>(times.size()) == rows);
      const bool shared =
          spec.role == WeightRole::kQkvWeight || spec.role == WeightRole::kQkvBias ||
          spec.role == WeightRole::kAttentionOutWeight ||
          spec.role == WeightRole::kAttentionOutBias || spec.role == WeightRole::kMlpUpWeight ||
          spec.role == WeightRole::kMlpUpBias || spec.role == WeightRole::kMlpDownWeight ||
          spec.role == WeightRole::kMlpDownBias || spec.role == WeightRole::kHead;
      for (const auto& [row, count] : times) CHECK(count == (shared ? 1 : ranks));
    }
  }
}

TEST_CASE("a rank's queries, keys and values are of the same heads, and its gates of its units") {
  const ModelShape whole = gated();
  const WeightSpec qkv = layer_spec(whole, WeightRole::kQkvWeight);
  // 64 queries, 32 keys, 32 values.
  CHECK(rank_rows(whole, qkv, 1, 4) == std::vector<RowSpan>{{16, 16}, {72, 8}, {104, 8}});
  const WeightSpec up = layer_spec(whole, WeightRole::kMlpUpWeight);
  CHECK(rank_rows(whole, up, 1, 2) == std::vector<RowSpan>{{48, 48}, {144, 48}});
  const WeightSpec out = layer_spec(whole, WeightRole::kAttentionOutWeight);
  CHECK(rank_rows(whole, out, 3, 4) == std::vector<RowSpan>{{48, 16}});
}

TEST_CASE("ranks have whole panels of the head where all get some") {
  CHECK(head_rows(50272, 0, 2) == RowSpan{0, 25152});
  CHECK(head_rows(50272, 1, 2) == RowSpan{25152, 25120});
  CHECK(head_rows(100, 3, 4) == RowSpan{75, 25});
  CHECK(head_rows(10, 2, 3) == RowSpan{8, 2});
  CHECK(head_rows(1000, 0, 1) == RowSpan{0, 1000});
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (int64_t vocabulary = ranks * ranks; vocabulary < 700; ++vocabulary) {
      int64_t next = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const RowSpan span = head_rows(vocabulary, rank, ranks);
        CHECK((span.first == next && span.count > 0));
        next += span.count;
      }
      CHECK(next == vocabulary);
    }
  }
}

TEST_CASE("a rank's shape has its heads and the whole stream") {
  const ModelShape shape = rank_shape(gated(), 3, 4).value();
  CHECK(shape.ranks == 4);
  CHECK(shape.rank == 3);
  CHECK(shape.heads == 2);
  CHECK(shape.kv_heads == 1);
  CHECK(shape.mlp == 24);
  CHECK(shape.hidden == 64);
  CHECK(validate(shape).ok());
  CHECK(rank_shape(gated(), 0, 1).value() == gated());
}

TEST_CASE("a model that cannot be divided says by what it can") {
  ModelShape shape = gated();
  shape.name = "odd";
  const Status refused = rank_shape(shape, 0, 3).status();
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(refused.message()), Catch::Contains("odd") && Catch::Contains("3 ranks") &&
                                                 Catch::Contains("4 KV heads") &&
                                                 Catch::Contains("may be 2, 4"));
  shape.kv_heads = 1;
  CHECK_THAT(std::string(rank_shape(shape, 0, 2).status().message()),
             Catch::Contains("one rank alone"));
}

}  // namespace
}  // namespace spillway::rank_shape_test
