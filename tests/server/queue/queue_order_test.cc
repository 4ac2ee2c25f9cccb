#include "server/queue/queue_order.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <set>

namespace spillway::queue_order_test {
namespace {

std::vector<QueueRow> rows_with(const std::vector<double>& works) {
  std::vector<QueueRow> rows;
  for (const double work : works) {
    const auto number = static_cast<int64_t>(rows.size()) + 1;
    rows.push_back(
        {static_cast<uint64_t>(100 * number), number, work, static_cast<uint64_t>(number), false});
  }
  return rows;
}

double work_of(const std::vector<QueueRow>& rows, size_t first, size_t count) {
  const auto begin = rows.begin() + static_cast<ptrdiff_t>(first);
  return std::accumulate(begin, begin + static_cast<ptrdiff_t>(count), 0.0,
                         [](double sum, const QueueRow& row) { return sum + row.work; });
}

TEST_CASE("rows of one length stay in the file's order") {
  std::vector<QueueRow> rows = rows_with(std::vector<double>(100, 5.0));
  order_rows(&rows);
  for (size_t i = 0; i < rows.size(); ++i) CHECK(rows[i].number == static_cast<int64_t>(i) + 1);
  std::vector<QueueRow> none;
  order_rows(&none);
  CHECK(none.empty());
}

TEST_CASE("every run of rows has long and short ones, and the shortest come last") {
  // A file sorted by length is the worst: one worker would take all that is long.
  std::vector<double> works;
  for (int i = 0; i < 4000; ++i) works.push_back(1 + i);
  std::vector<QueueRow> rows = rows_with(works);
  order_rows(&rows);
  std::set<int64_t> numbers;
  for (const QueueRow& row : rows) numbers.insert(row.number);
  CHECK(numbers.size() == works.size());
  constexpr size_t kRun = 64;
  const size_t mixed = rows.size() - rows.size() / 8;
  const double mean = work_of(rows, 0, mixed) / static_cast<double>(mixed);
  for (size_t first = 0; first + kRun <= mixed; first += kRun) {
    CHECK(work_of(rows, first, kRun) / kRun == Approx(mean).epsilon(0.03));
  }
  for (size_t i = mixed; i < rows.size(); ++i) CHECK(rows[i].work == Approx(rows.size() - i));
}

TEST_CASE("rows that begin alike stay neighbours") {
  std::vector<QueueRow> rows = rows_with({9, 9, 9, 1, 1, 5, 5, 5, 5, 2, 7, 3, 3, 8, 8, 8});
  const std::vector<uint64_t> groups = {1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 5, 6, 6, 7, 7, 7};
  for (size_t i = 0; i < rows.size(); ++i) rows[i].group = groups[i];
  order_rows(&rows);
  std::vector<uint64_t> seen;
  for (const QueueRow& row : rows) {
    if (seen.empty() || seen.back() != row.group) seen.push_back(row.group);
  }
  CHECK(seen.size() == 7);  // Each group once
  CHECK(rows.back().work == 1);
}

}  // namespace
}  // namespace spillway::queue_order_test
