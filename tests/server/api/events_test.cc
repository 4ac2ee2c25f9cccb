// What the dashboard is told: the fields of an event, the last sweep's picture, and the end.
#include <catch2/catch.hpp>

#include "kernels/base/clock.h"
#include "tests/server/api/api_support.h"

namespace spillway::events_test {
namespace {

Json next_event(HttpClient& client) {
  std::string chunk = client.read_chunk();
  REQUIRE(chunk.starts_with("data: {"));
  return Json::parse(chunk.substr(6));
}

TEST_CASE("events tell what runs, once a second, until the server drains") {
  TestServer test;
  Timeline timeline(nullptr);
  test.api.timeline = &timeline;
  test.api.plan = {{{"device", "weights", 100}}, 12.5};
  test.api.plan_text = "{\"version\":1}";
  test.api.batches = [](uint64_t key) { return "[{\"key\":" + std::to_string(key) + "}]"; };
  HttpClient client(test.server->port());
  client.send("GET /api/events HTTP/1.1\r\nHost: a\r\n\r\n");
  const HttpAnswer head = client.read_head();
  CHECK(head.status == 200);
  CHECK(head.fields.at("content-type") == "text/event-stream; charset=utf-8");
  Json event = next_event(client);
  CHECK(event["model"] == "fake-model");
  CHECK(event["positions"] == 128);
  CHECK(event["healthy"] == true);
  CHECK(event["running"] == 0);
  CHECK(event["predicted"] == 12.5);
  CHECK(event["tiers"][0] == Json{{"tier", "device"}, {"kind", "weights"}, {"bytes", 100}});
  CHECK(event["sweep"].is_null());
  CHECK(event["batches"] == Json{{{"key", 0}}});
  CHECK(event["plan"] == "{\"version\":1}");
  // Somebody watches now.
  const auto track = timeline.track("compute");
  const double now = steady_seconds();
  timeline.span(track, "linear", now - 2, now - 1);
  timeline.span(track, "linear", now - 0.5, now);
  SweepStats sweep;
  sweep.ended = now;
  sweep.seconds = 1.5;
  sweep.decoding = 7;
  sweep.prompt_tokens = 30;
  sweep.weights_wait = 0.25;
  test.engine.set_last_sweep(sweep);
  event = next_event(client);
  CHECK(event["sweep"]["seconds"] == 1.5);
  CHECK(event["sweep"]["decoding"] == 7);
  CHECK(event["sweep"]["waits"][0] == Json{{"name", "weights"}, {"seconds", 0.25}});
  REQUIRE(event["sweep"]["tracks"].size() == 1);
  const Json& spans = event["sweep"]["tracks"][0]["spans"];
  REQUIRE(spans.size() == 2);
  CHECK(spans[0][0] == 0);
  CHECK(spans[0][1].get<double>() == Approx(0.5));
  test.api.draining = true;
  while (true) {
    const std::string chunk = client.read_chunk();
    if (chunk.empty()) break;
    if (chunk == "data: [DONE]\n\n") continue;
    CHECK(chunk.starts_with("data: {"));
  }
  CHECK(test.server->wait_quiet(5));
}

TEST_CASE("HEAD of the events is the head alone, and the connection goes on") {
  TestServer test;
  HttpClient client(test.server->port());
  client.send("HEAD /api/events HTTP/1.1\r\nHost: a\r\n\r\n");
  const HttpAnswer head = client.read_head();
  CHECK(head.status == 200);
  CHECK(head.fields.at("content-type") == "text/event-stream; charset=utf-8");
  const HttpAnswer next = client.get("/version");
  CHECK(next.status == 200);
  CHECK(Json::parse(next.body)["version"] == SPILLWAY_VERSION);
}

}  // namespace
}  // namespace spillway::events_test
