// The timeline of the last seconds: kept while it is watched, cut to a time, joined; and handed on.
#include "kernels/base/timeline.h"

#include <catch2/catch.hpp>

namespace spillway::timeline_test {
namespace {

using Spans = std::vector<std::pair<double, double>>;

TEST_CASE("spans are kept only while somebody watches") {
  Timeline timeline(nullptr);
  const auto track = timeline.track("compute");
  timeline.span(track, "linear", 1, 2);
  CHECK(timeline.between(0, 10, 100).empty());
  timeline.watch_until(5);
  timeline.watch_until(4);
  timeline.span(track, "linear", 3, 4.5);
  timeline.span(track, "linear", 4.8, 5.5);
  const auto rows = timeline.between(0, 10, 100);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].name == "compute");
  CHECK(rows[0].spans == Spans{{3, 4.5}});
}

TEST_CASE("a row is cut to the time, and joined where its gaps are short") {
  Timeline timeline(nullptr);
  timeline.watch_until(1000);
  const auto compute = timeline.track("compute"), disk = timeline.track("disk -> host");
  CHECK(timeline.track("compute") == compute);
  timeline.track("never used");
  timeline.span(disk, "read", 13, 14);
  timeline.span(disk, "read", 9, 11);  // In any order
  timeline.span(disk, "read", 10.5, 12);
  timeline.span(compute, "linear", 12, 12.5);
  timeline.span(compute, "linear", 12.55, 30);
  const auto rows = timeline.between(10, 20, 100);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].name == "compute");
  CHECK(rows[0].spans == Spans{{2, 10}});
  CHECK(rows[1].spans == Spans{{0, 2}, {3, 4}});
  CHECK(timeline.between(50, 60, 100).empty());
}

TEST_CASE("a row has no more spans than parts, and the oldest go first") {
  Timeline timeline(nullptr);
  timeline.watch_until(1e9);
  const auto track = timeline.track("compute");
  const size_t many = Timeline::kSpansMax + 1000;
  for (size_t i = 0; i < many; ++i) {
    timeline.span(track, "linear", static_cast<double>(i), static_cast<double>(i) + 0.5);
  }
  const auto all = timeline.between(0, static_cast<double>(many), 10 * many);
  REQUIRE(all.size() == 1);
  CHECK(all[0].spans.size() == Timeline::kSpansMax);
  CHECK(all[0].spans[0].first == 1000);
  CHECK(timeline.between(0, static_cast<double>(many), 50)[0].spans.size() <= 50);
}

}  // namespace
}  // namespace spillway::timeline_test
