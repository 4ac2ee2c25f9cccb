#include "tests/support/prometheus_text.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <regex>
#include <sstream>

namespace spillway::test {

namespace {

std::string unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      plain += text[i];
      continue;
    }
    REQUIRE(++i < text.size());
    REQUIRE(std::string("\\\"n").find(text[i]) != std::string::npos);
    plain += text[i] == 'n' ? '\n' : text[i];
  }
  return plain;
}

// `{a="b",c="d"}`, or nothing.
Metrics::Labels read_labels(const std::string& text) {
  static const std::regex kLabel(R"re(([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(,|\}))re");
  Metrics::Labels labels;
  if (text.empty()) return labels;
  for (auto at = text.cbegin() + 1; at != text.cend();) {
    std::smatch label;
    REQUIRE(
        std::regex_search(at, text.cend(), label, kLabel, std::regex_constants::match_continuous));
    CHECK(labels.emplace(label[1], unescaped(label[2])).second);
    at = label[0].second;
    CHECK((label[3] == "}") == (at == text.cend()));
  }
  return labels;
}

// Reads line by line.
class Reader {
 public:
  void line(const std::string& line) {
    static const std::regex kHelp(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (\S.*))");
    static const std::regex kType(R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram))");
    static const std::regex kSample(
        R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? (-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?))re");
    INFO(line);
    std::smatch match;
    if (std::regex_match(line, match, kHelp)) {
      end_family();
      family_ = match[1];
      CHECK_FALSE(metrics.types.contains(family_));
    } else if (std::regex_match(line, match, kType)) {
      CHECK(match[1] == family_);
      CHECK(metrics.types.emplace(match[1], match[2]).second);
    } else {
      REQUIRE(std::regex_match(line, match, kSample));
      sample(match[1], read_labels(match[2]), std::stod(match[3]));
    }
  }

  void end_family() {
    INFO(family_);
    if (family_.empty()) return;
    REQUIRE(metrics.names.contains(family_));
    if (metrics.types[family_] == "histogram") CHECK(std::isinf(bound_));
  }

  Metrics metrics;

 private:
  void sample(const std::string& name, const Metrics::Labels& labels, double value) {
    REQUIRE(metrics.types.contains(family_));
    const std::string& type = metrics.types[family_];
    if (type == "histogram") {
      histogram_sample(name, labels, value);
    } else {
      CHECK(name == family_);
    }
    if (type == "counter") CHECK(name.ends_with("_total"));
    if (type != "gauge") CHECK(value >= 0);
    metrics.names.insert(family_);
    CHECK(metrics.samples.emplace(std::pair(name, labels), value).second);
  }

  // Sum and count come first, then the buckets in order (of one set of labels a family).
  void histogram_sample(const std::string& name, const Metrics::Labels& labels, double value) {
    if (name == family_ + "_count") {
      count_ = value;
      last_ = 0;
      bound_ = -1;
    } else if (name == family_ + "_bucket") {
      REQUIRE(labels.contains("le"));
      const double bound = std::stod(labels.at("le"));  // Of "+Inf", too
      CHECK(bound > bound_);
      CHECK(value >= last_);
      if (labels.at("le") == "+Inf") CHECK(value == count_);
      bound_ = bound;
      last_ = value;
    } else {
      CHECK(name == family_ + "_sum");
    }
  }

  std::string family_;
  double count_ = 0, last_ = 0, bound_ = -1;
};

}  // namespace

double Metrics::value(const std::string& name, const Labels& labels) const {
  INFO(name);
  const auto found = samples.find({name, labels});
  REQUIRE(found != samples.end());
  return found->second;
}

Metrics parse_metrics(std::string_view text) {
  REQUIRE(text.ends_with('\n'));
  std::istringstream lines{std::string(text)};
  Reader reader;
  for (std::string line; std::getline(lines, line);) reader.line(line);
  reader.end_family();
  return std::move(reader.metrics);
}

}  // namespace spillway::test
