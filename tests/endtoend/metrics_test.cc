// /metrics of a served model: what the real engine counted is what its answers said.
#include <catch2/catch.hpp>
#include <csignal>
#include <future>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "server/cli/common/served_model.h"
#include "server/cli/serve/serve.h"
#include "tests/support/golden.h"
#include "tests/support/http_client.h"
#include "tests/support/prometheus_text.h"

namespace spillway::endtoend_metrics_test {
namespace {

using Json = nlohmann::json;

// `spillway serve` of a golden checkpoint, inside this process; ends with the scope.
class Served {
 public:
  explicit Served(const ServedModel& model) {
    ServeFlags flags;
    flags.port = 0;
    std::promise<std::string> listening;
    std::future<std::string> url = listening.get_future();
    result_ = std::async(std::launch::async, [flags, &model, &listening] {
      return run_serve(flags, HttpListener::bind(flags.host, flags.port).value(), model,
                       [&](std::string_view text) { listening.set_value(std::string(text)); });
    });
    const std::string text = url.get();
    port_ = static_cast<uint16_t>(std::stoi(text.substr(text.rfind(':') + 1)));
  }
  ~Served() {
    std::raise(SIGTERM);
    CHECK(result_.get().ok());
  }

  Json complete(const Json& body) {
    const HttpAnswer answer = HttpClient(port_).post("/v1/completions", body.dump());
    INFO(answer.body);
    REQUIRE(answer.status == 200);
    return Json::parse(answer.body);
  }
  test::Metrics scrape() { return test::parse_metrics(HttpClient(port_).get("/metrics").body); }

 private:
  std::future<Status> result_;
  uint16_t port_ = 0;
};

TEST_CASE("the metrics of a served model add up with its answers") {
  const test::TemporaryCache cache;
  const test::Golden golden = test::read_golden("pre_ln_relu");
  EngineFlags flags;
  flags.weights = TierPercent{40, 10, 50};
  flags.kv = TierPercent{50, 0, 50};
  flags.activations = TierPercent{50, 20, 30};
  flags.block = 8;
  flags.host_memory_bytes = uint64_t{1} << 30;
  const ServedModel model = model_opener()(golden.checkpoints.front(), flags, {}).value();
  const std::string name = model.context.model_names.front();
  Served served(model);

  const std::vector<int32_t> prompt(30, 5);
  int64_t kept = 0, dropped = 0, saved = 0, generated = 0, prefilled = 0;
  for (const Json& rule : {Json{{"kv_rule", "h2o"}, {"kv_heavy", 6}, {"kv_recent", 5}},
                           Json{{"kv_rule", "h2o"}, {"kv_heavy", 0.1}, {"kv_recent", 0.2}},
                           Json{{"kv_rule", "window"}, {"kv_recent", 8}, {"kv_sink", 2}},
                           Json{{"kv_rule", "snap"}, {"kv_snap", "max"}, {"kv_keep", 3}},
                           Json{{"kv_rule", "random"}, {"kv_keep", 0.1}}, Json{}}) {
    Json body = {{"prompt", prompt}, {"max_tokens", 12}, {"ignore_eos", true}};
    body.update(rule.is_null() ? Json::object() : rule);
    const Json usage = served.complete(body)["usage"];
    INFO(usage);
    generated += usage["completion_tokens"].get<int64_t>();
    prefilled += usage["prompt_tokens"].get<int64_t>();
    // The last token of 42 is never cached; of the full cache answers say nothing.
    kept += rule.is_null() ? 41 : usage["kv_cache"]["rows_kept"].get<int64_t>();
    if (!rule.is_null()) {
      CHECK(usage["kv_cache"]["rows_dropped"].get<int64_t>() > 20);
      dropped += usage["kv_cache"]["rows_dropped"].get<int64_t>();
      saved += usage["kv_cache"]["bytes_saved"].get<int64_t>();
    }
    const test::Metrics metrics = served.scrape();
    const auto value = [&](const char* metric) {
      return metrics.value(metric, {{"engine", "0"}, {"model_name", name}});
    };
    CHECK(value("spillway_kv_rows_kept_total") == kept);
    CHECK(value("spillway_kv_rows_dropped_total") == dropped);
    CHECK(value("spillway_kv_bytes_saved_total") == saved);
    CHECK(value("vllm:generation_tokens_total") == generated);
    CHECK(value("vllm:prompt_tokens_total") == prefilled);
    CHECK(value("spillway_sweeps_total") == generated);  // One request at a time
    CHECK(value("spillway_busy_seconds_total") > 0);
    CHECK(value("vllm:kv_cache_usage_perc") == 0);
    CHECK(value("vllm:e2e_request_latency_seconds_count") == generated / 12);
    CHECK(value("vllm:e2e_request_latency_seconds_sum") > 0);
    CHECK(metrics.value("vllm:request_success_total",
                        {{"engine", "0"}, {"model_name", name}, {"finished_reason", "length"}}) ==
          generated / 12);
  }
  CHECK(generated == 6 * 12);
  CHECK(saved > 0);

  const test::Metrics metrics = served.scrape();
  const auto tier = [&](const char* where, const char* kind) {
    return metrics.value("spillway_tier_bytes",
                         {{"engine", "0"}, {"model_name", name}, {"tier", where}, {"kind", kind}});
  };
  for (const char* where : {"device", "host", "disk"}) {
    INFO(where);
    CHECK(tier(where, "weights") > 0);
    CHECK(tier(where, "activations") > 0);
  }
  CHECK(tier("disk", "kv") > 0);
  CHECK(tier("host", "staging") > 0);
  // Half of the weights come from disk in each sweep, and the cache goes there and back.
  const auto own = [&](const char* metric, test::Metrics::Labels labels) {
    labels["engine"] = "0";
    labels["model_name"] = name;
    return metrics.value(metric, labels);
  };
  CHECK(own("spillway_link_bytes_total", {{"link", "disk_to_host"}}) >=
        own("spillway_sweeps_total", {}) * tier("disk", "weights") * 0.9);
  CHECK(own("spillway_link_bytes_total", {{"link", "host_to_disk"}}) > 0);
  CHECK(own("spillway_link_busy_seconds_total", {{"link", "disk_to_host"}}) > 0);
  double seconds = 0;
  for (const auto& [cause, link] :
       std::vector<std::pair<const char*, const char*>>{{"compute", "none"},
                                                        {"weights", "disk_to_host"},
                                                        {"kv", "disk_to_host"},
                                                        {"activations", "disk_to_host"},
                                                        {"write_room", "host_to_disk"},
                                                        {"other", "none"}}) {
    seconds += own("spillway_sweep_seconds_total", {{"cause", cause}, {"link", link}});
  }
  CHECK(seconds == Approx(own("spillway_busy_seconds_total", {})).epsilon(1e-6));
  CHECK(own("spillway_measured_tokens_per_second", {}) > 0);
  CHECK(own("spillway_num_requests_running", {{"class", "interactive"}}) == 0);
  CHECK(metrics.value("http_requests_total",
                      {{"handler", "/v1/completions"}, {"method", "POST"}, {"status", "200"}}) >=
        5);

  CHECK(metrics.value("spillway_kv_capacity_bytes", {{"engine", "0"}, {"model_name", name}}) ==
        tier("device", "kv") + tier("host", "kv") + tier("disk", "kv"));
}

}  // namespace
}  // namespace spillway::endtoend_metrics_test
