// What becomes of matches and the text between them.
#include "server/tokenizer/split_parts.h"

#include <catch2/catch.hpp>
#include <utility>

namespace spillway::split_parts_test {
namespace {

using Spans = std::vector<std::pair<size_t, size_t>>;

// "aXXbXc" with a match at each X.
Spans pieces(SplitBehavior behavior) {
  std::vector<PieceList::Span> spans;
  append_pieces(parts_of({{1, 2}, {2, 3}, {4, 5}}, 6), behavior, 10, &spans);
  Spans shown;
  for (const auto& span : spans) shown.emplace_back(span.begin - 10, span.end - 10);
  return shown;
}

TEST_CASE("every behavior") {
  CHECK(pieces(SplitBehavior::kIsolated) == Spans{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}});
  CHECK(pieces(SplitBehavior::kRemoved) == Spans{{0, 1}, {3, 4}, {5, 6}});
  CHECK(pieces(SplitBehavior::kMergedWithPrevious) == Spans{{0, 2}, {2, 3}, {3, 5}, {5, 6}});
  CHECK(pieces(SplitBehavior::kMergedWithNext) == Spans{{0, 1}, {1, 2}, {2, 4}, {4, 6}});
  CHECK(pieces(SplitBehavior::kContiguous) == Spans{{0, 1}, {1, 3}, {3, 4}, {4, 5}, {5, 6}});
}

TEST_CASE("empty pieces are left out, and all of a text may match") {
  std::vector<PieceList::Span> spans;
  append_pieces(parts_of({{0, 0}, {0, 2}}, 2), SplitBehavior::kIsolated, 0, &spans);
  REQUIRE(spans.size() == 1);
  CHECK(spans[0].end == 2);
  spans.clear();
  append_pieces(parts_of({{0, 2}}, 2), SplitBehavior::kRemoved, 0, &spans);
  CHECK(spans.empty());
}

}  // namespace
}  // namespace spillway::split_parts_test
