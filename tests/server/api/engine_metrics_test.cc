// The metrics of the engine's work, made of figures that a test has chosen.
#include "server/api/engine_metrics.h"

#include <prometheus/text_serializer.h>

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/prometheus_text.h"

namespace spillway::engine_metrics_test {
namespace {

using test::Metrics;

Metrics metrics_of(const SchedulerStats& stats, const PlanFigures& plan = {}) {
  MetricFamilies families(MetricFamilies::Labels{{"engine", "0"}});
  add_engine_metrics(stats, true, plan, &families);
  return test::parse_metrics(prometheus::TextSerializer().Serialize(families.take()));
}

Metrics::Labels with(const Metrics::Labels& own) {
  Metrics::Labels labels = own;
  labels["engine"] = "0";
  return labels;
}

TEST_CASE("the seconds of sweeps by cause, with the link that was waited for") {
  SchedulerStats stats;
  stats.busy_seconds = 21;
  stats.seconds = {1, 2, 3, 4, 5, 6};
  const Metrics metrics = metrics_of(stats);
  const auto seconds = [&](const char* cause, const char* link) {
    return metrics.value("spillway_sweep_seconds_total", with({{"cause", cause}, {"link", link}}));
  };
  CHECK(seconds("compute", "none") == 1);
  CHECK(seconds("weights", "disk_to_host") == 2);
  CHECK(seconds("kv", "disk_to_host") == 3);
  CHECK(seconds("activations", "disk_to_host") == 4);
  CHECK(seconds("write_room", "host_to_disk") == 5);
  CHECK(seconds("other", "none") == 6);
  CHECK(metrics.value("spillway_busy_seconds_total", with({})) == 21);
}

TEST_CASE("links tell their bytes, and the time of those that are timed") {
  SchedulerStats stats;
  stats.links[static_cast<size_t>(Link::kDiskToHost)] = LinkTotals{uint64_t{5} << 40, 12.5};
  stats.links[static_cast<size_t>(Link::kHostToDisk)] = LinkTotals{0, 0.0};
  stats.links[static_cast<size_t>(Link::kHostToDevice)] = LinkTotals{77, {}};
  const Metrics metrics = metrics_of(stats);
  const auto bytes = [&](const char* link) {
    return metrics.value("spillway_link_bytes_total", with({{"link", link}}));
  };
  CHECK(bytes("disk_to_host") == 5'497'558'138'880);
  CHECK(bytes("host_to_disk") == 0);
  CHECK(bytes("host_to_device") == 77);
  CHECK(metrics.value("spillway_link_busy_seconds_total", with({{"link", "disk_to_host"}})) ==
        12.5);
  CHECK_FALSE(metrics.samples.contains(
      {"spillway_link_busy_seconds_total", with({{"link", "host_to_device"}})}));
  CHECK_FALSE(
      metrics.samples.contains({"spillway_link_bytes_total", with({{"link", "device_to_host"}})}));
}

TEST_CASE("waiting and running by class") {
  SchedulerStats stats;
  stats.running_by_class = {1, 2, 3, 4};
  stats.waiting_by_class = {5, 6, 7, 8};
  const Metrics metrics = metrics_of(stats);
  double expected = 1;
  for (const char* name : {"spillway_num_requests_running", "spillway_num_requests_waiting"}) {
    for (const char* of : {"priority", "interactive", "background", "batch"}) {
      CHECK(metrics.value(name, with({{"class", of}})) == expected++);
    }
  }
}

TEST_CASE("prediction beside measurement, and the bound; what nobody knows is not there") {
  const Metrics nothing = metrics_of({});
  for (const char* name :
       {"spillway_policy_predicted_tokens_per_second", "spillway_measured_tokens_per_second",
        "spillway_bound_seconds_total", "spillway_efficiency_ratio", "spillway_link_bytes_total",
        "spillway_link_busy_seconds_total", "spillway_tier_bytes"}) {
    CHECK_FALSE(nothing.types.contains(name));
  }
  SchedulerStats stats;
  stats.recent_tokens = 300;
  stats.recent_seconds = 60;
  stats.recent_bound_seconds = 45;
  const Metrics unprofiled = metrics_of(stats);
  CHECK(unprofiled.value("spillway_measured_tokens_per_second", with({})) == 5);
  CHECK_FALSE(unprofiled.types.contains("spillway_efficiency_ratio"));
  stats.bound_seconds = 450;
  const Metrics metrics = metrics_of(stats, {{}, 8.5});
  CHECK(metrics.value("spillway_policy_predicted_tokens_per_second", with({})) == 8.5);
  CHECK(metrics.value("spillway_bound_seconds_total", with({})) == 450);
  CHECK(metrics.value("spillway_efficiency_ratio", with({})) == 0.75);
}

}  // namespace
}  // namespace spillway::engine_metrics_test
