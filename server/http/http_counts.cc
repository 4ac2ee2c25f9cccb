#include "server/http/http_counts.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace spillway {

namespace {

// Whoever invents methods must not make a new series with each.
std::string method_label(const std::string& method) {
  constexpr std::array<std::string_view, 7> kKnown = {"GET",    "HEAD",    "POST", "PUT",
                                                      "DELETE", "OPTIONS", "PATCH"};
  return std::find(kKnown.begin(), kKnown.end(), method) != kKnown.end() ? method : "other";
}

}  // namespace

void HttpCounts::count(const RequestReport& report) {
  const std::string handler = report.route.empty() ? "none" : report.route;
  const Kind kind = {handler, method_label(report.method), reported_status(report)};
  const std::lock_guard lock(mutex_);
  ++totals_.requests[kind];
  if (!report.error.empty() && !report.work) ++totals_.refusals[report.error];
}

HttpCounts::Totals HttpCounts::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

}  // namespace spillway
