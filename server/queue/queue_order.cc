#include "server/queue/queue_order.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace spillway {
namespace {

// Rows that begin alike and stay together.
struct Unit {
  size_t first = 0, rows = 0;
  double work = 0;  // Of a row, in the mean
  double key = 0;
};

std::vector<Unit> units_of(const std::vector<QueueRow>& rows) {
  std::vector<Unit> units;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].group != rows[i - 1].group) units.push_back({i, 0, 0, 0});
    ++units.back().rows;
    units.back().work += rows[i].work;
  }
  for (Unit& unit : units) unit.work /= static_cast<double>(unit.rows);
  return units;
}

}  // namespace

void order_rows(std::vector<QueueRow>* rows) {
  constexpr double kGolden = 0.6180339887498949;
  constexpr size_t kLastPart = 8;  // An eighth of the rows, the shortest, comes last.
  std::vector<Unit> units = units_of(*rows);
  const auto [least, most] = std::minmax_element(
      units.begin(), units.end(), [](const Unit& a, const Unit& b) { return a.work < b.work; });
  if (units.empty() || least->work == most->work) return;  // Nothing to mix
  std::stable_sort(units.begin(), units.end(),
                   [](const Unit& a, const Unit& b) { return a.work > b.work; });
  size_t mixed = units.size();
  for (size_t last_rows = 0; mixed > 0; --mixed) {
    last_rows += units[mixed - 1].rows;
    if (last_rows > rows->size() / kLastPart) break;
  }
  // Multiples of the golden ratio spread evenly: any run of the sorted keys has ranks from all
  // over.
  for (size_t rank = 0; rank < mixed; ++rank) {
    const double multiple = static_cast<double>(rank) * kGolden;
    units[rank].key = multiple - std::floor(multiple);
  }
  std::sort(units.begin(), units.begin() + static_cast<ptrdiff_t>(mixed),
            [](const Unit& a, const Unit& b) { return a.key < b.key; });
  std::vector<QueueRow> ordered;
  ordered.reserve(rows->size());
  for (const Unit& unit : units) {
    const auto first = rows->begin() + static_cast<ptrdiff_t>(unit.first);
    ordered.insert(ordered.end(), first, first + static_cast<ptrdiff_t>(unit.rows));
  }
  *rows = std::move(ordered);
}

}  // namespace spillway
