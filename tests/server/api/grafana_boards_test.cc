// The metrics that dashboards ask for are those that the server has: of our board
// (docs/grafana/spillway.json) in every query, of vLLM's by name.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include "server/api/metrics.h"
#include "tests/support/places.h"
#include "tests/support/prometheus_text.h"

namespace spillway::grafana_boards_test {
namespace {

using Json = nlohmann::json;

// The names of all samples of a server that knows everything: its machine has a profile and a
// device with memory of its own, it has answered requests, and it runs batches.
std::set<std::string> exposed() {
  SchedulerStats stats;
  stats.bound_seconds = 1;
  stats.recent_seconds = 1;
  for (auto& link : stats.links) link = LinkTotals{1, 1.0};
  ServerFigures server;
  server.http = HttpCounts::Totals{{{{"/v1/completions", "POST", 200}, 1}}, {}};
  server.batches = BatchFigures{{{"in_progress", 1}}, 1, 0, 0};
  server.process = ProcessStats();
  const PlanFigures plan = {{{"device", "weights", 1}}, 1.0};
  const test::Metrics metrics = test::parse_metrics(metrics_text("m", stats, true, plan, server));
  std::set<std::string> names;
  for (const auto& [sample, value] : metrics.samples) names.insert(sample.first);
  return names;
}

// In our queries every metric has a selector, and nothing else has one.
std::vector<std::string> metrics_of(const std::string& expression) {
  static const std::regex kMetric(R"(([a-zA-Z_:][a-zA-Z0-9_:]*)\{)");
  std::vector<std::string> names;
  for (std::sregex_iterator at(expression.begin(), expression.end(), kMetric), end; at != end;
       ++at) {
    names.push_back((*at)[1]);
  }
  return names;
}

TEST_CASE("every query of our board asks for metrics that the server has") {
  std::ifstream file(test::source_directory() + "/docs/grafana/spillway.json");
  const Json board = Json::parse(file);
  const std::set<std::string> names = exposed();
  std::set<std::string> asked;
  int64_t panels = 0;
  for (const Json& panel : board["panels"]) {
    if (panel["type"] == "row") continue;
    ++panels;
    INFO(panel["title"]);
    CHECK_FALSE(panel["description"].get<std::string>().empty());
    CHECK_FALSE(panel["targets"].empty());
    for (const Json& target : panel["targets"]) {
      const std::string expression = target["expr"];
      INFO(expression);
      const std::vector<std::string> wanted = metrics_of(expression);
      CHECK_FALSE(wanted.empty());
      for (const std::string& name : wanted) {
        INFO(name);
        CHECK(names.contains(name));
        asked.insert(name);
      }
    }
  }
  CHECK(panels > 20);
  // Nothing that only we have is left out of the board.
  for (const std::string& name : names) {
    if (name.starts_with("spillway_") && name != "spillway_kv_bytes_saved_total") {
      INFO(name);
      CHECK(asked.contains(name));
    }
  }
}

TEST_CASE("vLLM's Grafana board finds all its metrics") {
  // examples/observability/prometheus_grafana/grafana.json of vLLM, titled "vLLM".
  const char* const kAsked[] = {"vllm:e2e_request_latency_seconds_bucket",
                                "vllm:e2e_request_latency_seconds_sum",
                                "vllm:e2e_request_latency_seconds_count",
                                "vllm:prompt_tokens_total",
                                "vllm:generation_tokens_total",
                                "vllm:inter_token_latency_seconds_bucket",
                                "vllm:inter_token_latency_seconds_sum",
                                "vllm:inter_token_latency_seconds_count",
                                "vllm:num_requests_running",
                                "vllm:num_requests_waiting",
                                "vllm:time_to_first_token_seconds_bucket",
                                "vllm:time_to_first_token_seconds_sum",
                                "vllm:time_to_first_token_seconds_count",
                                "vllm:kv_cache_usage_perc",
                                "vllm:request_prompt_tokens_bucket",
                                "vllm:request_generation_tokens_bucket",
                                "vllm:request_success_total",
                                "vllm:request_queue_time_seconds_sum",
                                "vllm:request_prefill_time_seconds_sum",
                                "vllm:request_decode_time_seconds_sum",
                                "vllm:request_max_num_generation_tokens_sum"};
  const std::set<std::string> names = exposed();
  for (const char* name : kAsked) {
    INFO(name);
    CHECK(names.contains(name));
  }
}

}  // namespace
}  // namespace spillway::grafana_boards_test
