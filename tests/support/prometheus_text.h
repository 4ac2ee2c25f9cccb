// Prometheus text format 0.0.4, read as strictly as a scraper does and a little more.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace spillway::test {

struct Metrics {
  using Labels = std::map<std::string, std::string>;

  std::map<std::string, std::string> types;                  // By family
  std::map<std::pair<std::string, Labels>, double> samples;  // By name and labels
  std::set<std::string> names;                               // Of families that have samples

  // Fails the test when there is no such sample.
  double value(const std::string& name, const Labels& labels) const;
};

// Fails the test on any line that is neither `# HELP`, `# TYPE` nor a sample of the family above
// it, on a family without help text, type or sample or that comes twice, on a sample that comes
// twice, on a counter that does not end with _total or is below 0, and on a histogram that shrinks
// towards its last bucket or whose last is not +Inf with its count.
Metrics parse_metrics(std::string_view text);

}  // namespace spillway::test
