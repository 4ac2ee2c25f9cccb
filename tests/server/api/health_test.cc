// What /health says of sweeps that stall or fail.
#include "server/api/health.h"

#include <catch2/catch.hpp>

#include "tests/server/api/api_support.h"
#include "tests/server/api/check_error.h"
#include "tests/support/prometheus_text.h"

namespace spillway::health_test {
namespace {

using test::check_error;

TEST_CASE("health tells when sweeps do not end or fail, and when they are well again") {
  TestServer test;
  test.api.stall_seconds = 60;
  HttpClient client(test.server->port());
  const auto healthy = [&] {
    const auto metrics = test::parse_metrics(client.get("/metrics").body);
    return metrics.value("spillway_engine_healthy",
                         {{"engine", "0"}, {"model_name", "fake-model"}}) == 1;
  };
  test.engine.set_sweeps(59, kFailedSweepsMax - 1);
  CHECK(client.get("/health").status == 200);
  CHECK(healthy());
  test.engine.set_sweeps(61, 0);
  const HttpAnswer stalled = client.get("/health");
  check_error(stalled, 503, "unavailable_error", "engine_stalled");
  CHECK(stalled.body.find("61 s") != std::string::npos);
  CHECK_FALSE(healthy());
  test.engine.set_sweeps(0, kFailedSweepsMax);
  check_error(client.get("/health"), 503, "unavailable_error", "sweeps_failed");
  CHECK_FALSE(healthy());
  test.engine.set_sweeps(0, 0);
  CHECK(client.get("/health").status == 200);
  CHECK(healthy());
}

TEST_CASE("failures of an engine that nobody asks anything any more do not count for ever") {
  TestServer test;
  HttpClient client(test.server->port());
  const auto healthy = [&] {
    const auto metrics = test::parse_metrics(client.get("/metrics").body);
    return metrics.value("spillway_engine_healthy",
                         {{"engine", "0"}, {"model_name", "fake-model"}}) == 1;
  };
  test.engine.set_sweeps(0, kFailedSweepsMax, kFailuresCountSeconds - 1);
  check_error(client.get("/health"), 503, "unavailable_error", "sweeps_failed");
  test.engine.set_sweeps(0, kFailedSweepsMax, kFailuresCountSeconds + 15);
  const HttpAnswer doubtful = client.get("/health");
  CHECK(doubtful.status == 200);
  CHECK(Json::parse(doubtful.body)["status"] == "ok");
  CHECK_THAT(std::string(Json::parse(doubtful.body)["reason"]),
             Catch::Contains("last 3 sweeps failed, 75 s ago"));
  CHECK(healthy());
  // While there is work, the failures are all that is known of it.
  test.engine.hold();
  HttpClient asking(test.server->port());
  asking.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":1})"));
  REQUIRE(test.engine.wait_submitted(1));
  check_error(client.get("/health"), 503, "unavailable_error", "sweeps_failed");
  CHECK_FALSE(healthy());
  test.engine.release();
  CHECK(asking.read_answer().status == 200);
}

TEST_CASE("a server that was told to never counts a sweep as stalled") {
  TestServer test;
  test.api.stall_seconds = 0;
  test.engine.set_sweeps(1e9, 0);
  CHECK(HttpClient(test.server->port()).get("/health").status == 200);
}

}  // namespace
}  // namespace spillway::health_test
