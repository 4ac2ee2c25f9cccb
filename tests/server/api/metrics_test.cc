// GET /metrics over a fake engine whose every sequence keeps 3 rows, drops 4 and saves 500 bytes.
#include <catch2/catch.hpp>
#include <chrono>
#include <ctime>

#include "tests/server/api/api_support.h"
#include "tests/support/patience.h"
#include "tests/support/prometheus_text.h"

namespace spillway::api_metrics_test {
namespace {

using test::Metrics;
using test::parse_metrics;

Metrics scrape(const TestServer& test) {
  const HttpAnswer answer = HttpClient(test.server->port()).get("/metrics");
  REQUIRE(answer.status == 200);
  CHECK(answer.complete);
  CHECK(answer.fields.at("content-type") == "text/plain; version=0.0.4; charset=utf-8");
  return parse_metrics(answer.body);
}

const Metrics::Labels kModel = {{"engine", "0"}, {"model_name", "fake-model"}};

Metrics::Labels finished(const char* reason) {
  return {{"engine", "0"}, {"model_name", "fake-model"}, {"finished_reason", reason}};
}

TEST_CASE("metrics before anything was asked") {
  TestServer test;
  const Metrics metrics = scrape(test);
  for (const char* name :
       {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "spillway_kv_rows_kept_total",
        "spillway_kv_rows_dropped_total", "spillway_kv_bytes_saved_total", "spillway_sweeps_total",
        "spillway_busy_seconds_total"}) {
    CHECK(metrics.value(name, kModel) == 0);
  }
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    CHECK(metrics.value("vllm:request_success_total", finished(reason)) == 0);
  }
  CHECK(metrics.value("spillway_engine_healthy", kModel) == 1);
  CHECK(metrics.value("spillway_build_info", {{"version", SPILLWAY_VERSION}}) == 1);
  CHECK(metrics.value("process_resident_memory_bytes", {}) > 1e6);
  CHECK(metrics.value("process_virtual_memory_bytes", {}) >=
        metrics.value("process_resident_memory_bytes", {}));
  CHECK(metrics.value("process_cpu_seconds_total", {}) > 0);
  const double age =
      static_cast<double>(std::time(nullptr)) - metrics.value("process_start_time_seconds", {});
  CHECK(age > -2);  // Linux counts from a boot that it knows to the second.
  CHECK(age < 3600);
  CHECK(metrics.value("process_open_fds", {}) > 3);
  CHECK(metrics.value("process_max_fds", {}) >= metrics.value("process_open_fds", {}));
  // No plan, no prediction: no such family.
  CHECK_FALSE(metrics.types.contains("spillway_tier_bytes"));
  CHECK_FALSE(metrics.types.contains("spillway_policy_predicted_tokens_per_second"));
}

TEST_CASE("metrics add up with what answers say") {
  TestServer test;
  Json sum = {{"rows_kept", 0}, {"rows_dropped", 0}, {"bytes_saved", 0}};
  int64_t prompt_tokens = 0, generated = 0;
  for (const int n : {1, 3}) {
    const Json answer = Json::parse(
        test.post("/v1/completions",
                  {{"prompt", "hello"}, {"max_tokens", 4}, {"n", n}, {"kv_rule", "h2o"}})
            .body);
    const Json& usage = answer["usage"];
    for (auto& [name, value] : sum.items()) {
      value = value.get<int64_t>() + usage["kv_cache"][name].get<int64_t>();
    }
    prompt_tokens += n * usage["prompt_tokens"].get<int64_t>();  // Each sample is prefilled.
    generated += usage["completion_tokens"].get<int64_t>();
    const Metrics metrics = scrape(test);
    for (const auto& [name, value] : sum.items()) {
      CHECK(metrics.value("spillway_kv_" + name + "_total", kModel) == value.get<double>());
    }
    CHECK(metrics.value("vllm:prompt_tokens_total", kModel) == prompt_tokens);
    CHECK(metrics.value("vllm:generation_tokens_total", kModel) == generated);
    CHECK(metrics.value("vllm:time_to_first_token_seconds_count", kModel) == (n == 1 ? 1 : 4));
  }
  CHECK(sum == Json{{"rows_kept", 12}, {"rows_dropped", 16}, {"bytes_saved", 2000}});
  CHECK(scrape(test).value("vllm:request_success_total", finished("length")) == 4);
}

TEST_CASE("metrics count what runs, stops, fails and is given up") {
  TestServer::Options options;
  options.engine.token = [](const Request& request, int64_t t) {
    return t == 2 && request.max_tokens == 7 ? 0 : 'a' + 1;
  };
  TestServer test(options);
  test.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 7}});
  test.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 9}, {"stop", "aaa"}});
  // An answer may arrive before the engine has put its sequence away, which it would not do while
  // held.
  REQUIRE(test.engine.wait_idle());
  test.engine.hold();
  {
    HttpClient leaving(test.server->port());
    leaving.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":5,"n":2})"));
    REQUIRE(test.engine.wait_submitted(4));
    const Metrics metrics = scrape(test);
    CHECK(metrics.value("vllm:num_requests_running", kModel) +
              metrics.value("vllm:num_requests_waiting", kModel) ==
          2);
    leaving.reset();
  }
  REQUIRE(test.engine.wait_idle());
  test.engine.set_healthy(false);
  const Metrics metrics = scrape(test);  // Where /health answers 503
  CHECK(metrics.value("vllm:request_success_total", finished("stop")) == 2);
  CHECK(metrics.value("vllm:request_success_total", finished("abort")) == 2);
  CHECK(metrics.value("vllm:request_success_total", finished("length")) == 0);
  CHECK(metrics.value("vllm:num_requests_running", kModel) == 0);
  CHECK(metrics.value("spillway_engine_healthy", kModel) == 0);

  options.engine.fail_after_tokens = 1;
  TestServer failing(options);
  failing.post("/v1/completions", {{"prompt", "a"}});
  CHECK(scrape(failing).value("vllm:request_success_total", finished("error")) == 1);
}

TEST_CASE("metrics of a plan, under any model's name") {
  SchedulerStats stats;
  stats.kv_bytes_used = 300;
  stats.kv_bytes_total = 1200;
  stats.generated_tokens = 123'456'789'012;
  stats.busy_seconds = 0.125;
  stats.prefill_target = 77;
  stats.set_aside = 5;
  stats.drafts = {7, 20, 13};
  const PlanFigures plan = {{{"device", "weights", uint64_t{3} << 40}, {"disk", "kv", 7}}, 12.5};
  const std::string name = "odd \"name\" \\ of\ntwo lines {a=\"b\"} \xff";
  const Metrics::Labels labels = {
      {"engine", "0"}, {"model_name", "odd \"name\" \\ of\ntwo lines {a=\"b\"} \xef\xbf\xbd"}};
  const Metrics metrics = parse_metrics(metrics_text(name, stats, true, plan));
  CHECK(metrics.value("vllm:kv_cache_usage_perc", labels) == 0.25);
  CHECK(metrics.value("spillway_kv_reserved_bytes", labels) == 300);
  CHECK(metrics.value("spillway_kv_capacity_bytes", labels) == 1200);
  CHECK(metrics.value("vllm:generation_tokens_total", labels) == 123'456'789'012);
  CHECK(metrics.value("spillway_busy_seconds_total", labels) == 0.125);
  CHECK(metrics.value("spillway_prefill_target_tokens", labels) == 77);
  CHECK(metrics.value("vllm:num_preemptions_total", labels) == 5);
  CHECK(metrics.value("vllm:spec_decode_num_drafts_total", labels) == 7);
  CHECK(metrics.value("vllm:spec_decode_num_draft_tokens_total", labels) == 20);
  CHECK(metrics.value("vllm:spec_decode_num_accepted_tokens_total", labels) == 13);
  CHECK(metrics.value("spillway_policy_predicted_tokens_per_second", labels) == 12.5);
  const auto tier = [&](const char* where, const char* kind) {
    Metrics::Labels all = labels;
    all["tier"] = where;
    all["kind"] = kind;
    return metrics.value("spillway_tier_bytes", all);
  };
  CHECK(tier("device", "weights") == 3'298'534'883'328);
  CHECK(tier("disk", "kv") == 7);
}

TEST_CASE("metrics count answers by route and status, and refusals by reason") {
  TestServer test;
  HttpClient client(test.server->port());
  Metrics metrics = scrape(test);
  CHECK_FALSE(metrics.types.contains("http_requests_total"));  // This one is not over.
  const auto refused = [&](const char* reason) {
    return metrics.value("spillway_requests_rejected_total", {{"reason", reason}});
  };
  CHECK(refused("queue_full") == 0);
  CHECK(client.post("/v1/completions", R"({"prompt":"a"})").status == 200);
  CHECK(client.post("/v1/completions", R"({"prompt":5})").status == 400);
  CHECK(client.get("/v1/models/alias").status == 200);
  CHECK(client.get("/v1/other").status == 404);
  test.engine.refuse_after(0, Status(Code::kCapacity, "full"));
  CHECK(client.post("/v1/completions", R"({"prompt":"a"})").status == 429);
  const auto answered = [&](const char* handler, const char* method, const char* status) {
    const auto found = metrics.samples.find(
        {"http_requests_total", {{"handler", handler}, {"method", method}, {"status", status}}});
    return found == metrics.samples.end() ? 0 : found->second;
  };
  // A request is over when its handler is, too, which may be after its answer has been read.
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(test::kPatience);
  do {
    metrics = scrape(test);
  } while ((answered("/v1/completions", "POST", "200") == 0 ||
            answered("/v1/completions", "POST", "429") == 0) &&
           std::chrono::steady_clock::now() < end);
  CHECK(answered("/v1/completions", "POST", "200") == 1);
  CHECK(answered("/v1/completions", "POST", "400") == 1);
  CHECK(answered("/v1/completions", "POST", "429") == 1);
  CHECK(answered("/v1/models/{*}", "GET", "200") == 1);
  CHECK(answered("none", "GET", "404") == 1);
  CHECK(answered("/metrics", "GET", "200") >= 1);
  CHECK(refused("queue_full") == 1);
  CHECK(refused("invalid_type") == 1);
  CHECK(refused("unknown_url") == 1);
  CHECK(refused("answers_full") == 0);
}

TEST_CASE("metrics of batches, where there are any") {
  ServerFigures server;
  server.batches = BatchFigures{{{"in_progress", 2}, {"completed", 9}}, 30, 12, 1};
  const Metrics metrics = parse_metrics(metrics_text("m", {}, true, {}, server));
  CHECK(metrics.value("spillway_batches", {{"state", "in_progress"}}) == 2);
  CHECK(metrics.value("spillway_batches", {{"state", "completed"}}) == 9);
  CHECK(metrics.value("spillway_batch_rows", {{"state", "pending"}}) == 30);
  CHECK(metrics.value("spillway_batch_rows", {{"state", "completed"}}) == 12);
  CHECK(metrics.value("spillway_batch_rows", {{"state", "failed"}}) == 1);
  const Metrics without = parse_metrics(metrics_text("m", {}, true, {}));
  CHECK_FALSE(without.types.contains("spillway_batches"));
  CHECK_FALSE(without.types.contains("process_open_fds"));
}

TEST_CASE("histograms of how long sequences took") {
  SchedulerStats stats;
  Finish finish;
  finish.reason = FinishReason::kLength;
  finish.usage.generated_tokens = 5;
  finish.usage.queue_seconds = 2;
  finish.usage.prefill_seconds = 0.5;
  finish.usage.decode_seconds = 40'000;
  stats.times.add(finish);
  finish.reason = FinishReason::kError;  // Took no time worth counting
  stats.times.add(finish);
  const Metrics metrics = parse_metrics(metrics_text("fake-model", stats, true, {}));
  const auto bucket = [&](const std::string& name, const char* bound) {
    return metrics.value("vllm:" + name + "_seconds_bucket",
                         {{"engine", "0"}, {"model_name", "fake-model"}, {"le", bound}});
  };
  CHECK(bucket("request_queue_time", "1.5") == 0);
  CHECK(bucket("request_queue_time", "2") == 1);
  CHECK(bucket("request_prefill_time", "0.3") == 0);
  CHECK(bucket("request_prefill_time", "0.5") == 1);
  CHECK(bucket("time_to_first_token", "1") == 0);
  CHECK(bucket("time_to_first_token", "2.5") == 1);
  CHECK(bucket("request_decode_time", "28800") == 0);
  CHECK(bucket("request_decode_time", "+Inf") == 1);
  CHECK(metrics.value("vllm:e2e_request_latency_seconds_sum", kModel) == 40'002.5);
  CHECK(metrics.value("vllm:e2e_request_latency_seconds_count", kModel) == 1);
}

TEST_CASE("metrics are for who has a key, and read only") {
  TestServer::Options options;
  options.access.api_keys = {"secret"};
  TestServer guarded(options);
  HttpClient client(guarded.server->port());
  CHECK(client.get("/metrics").status == 401);
  client.send("GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\n\r\n");
  CHECK(client.read_answer().status == 200);
  TestServer open;
  const HttpAnswer answer = HttpClient(open.server->port()).post("/metrics", "{}");
  CHECK(answer.status == 405);
  CHECK(answer.fields.at("allow") == "GET, HEAD");
  CHECK(Json::parse(answer.body)["error"]["code"] == "method_not_allowed");
}

}  // namespace
}  // namespace spillway::api_metrics_test
