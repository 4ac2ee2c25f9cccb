// The families of one scrape of GET /metrics, each with its name, help text and samples, as they
// are put together. A value; any thread.
#pragma once

#include <prometheus/metric_family.h>

#include <utility>
#include <vector>

#include "scheduler/histogram.h"

namespace spillway {

class MetricFamilies {
 public:
  using Labels = std::vector<prometheus::ClientMetric::Label>;
  using Type = prometheus::MetricType;

  // `labels`: put before every sample's own labels.
  explicit MetricFamilies(Labels labels) : labels_(std::move(labels)) {}

  void gauge(const char* name, const char* help) { add(name, help, Type::Gauge); }
  void gauge(const char* name, const char* help, double value) {
    gauge(name, help);
    sample(value);
  }
  // `name` ends with _total; the value only grows.
  void counter(const char* name, const char* help) { add(name, help, Type::Counter); }
  void counter(const char* name, const char* help, double value) {
    counter(name, help);
    sample(value);
  }
  void histogram(const char* name, const char* help, const Histogram& values) {
    add(name, help, Type::Histogram);
    prometheus::ClientMetric& metric = all_.back().metric.emplace_back();
    metric.label = labels_;
    metric.histogram.sample_count = values.count();
    metric.histogram.sample_sum = values.sum();
    uint64_t count = 0;
    for (size_t i = 0; i < values.bounds().size(); ++i) {
      count += values.count(i);
      metric.histogram.bucket.push_back({count, values.bounds()[i]});
    }
  }
  // Adds a sample to the last added family, a gauge or counter.
  void sample(double value, const Labels& own = {}) {
    prometheus::MetricFamily& family = all_.back();
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.label = labels_;
    metric.label.insert(metric.label.end(), own.begin(), own.end());
    (family.type == Type::Counter ? metric.counter.value : metric.gauge.value) = value;
  }

  std::vector<prometheus::MetricFamily> take() { return std::move(all_); }

 private:
  void add(const char* name, const char* help, Type type) {
    all_.push_back({name, help, type, {}});
  }

  const Labels labels_;
  std::vector<prometheus::MetricFamily> all_;
};

}  // namespace spillway
