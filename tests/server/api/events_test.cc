// What the dashboard is told: the fields of an event, the last sweep's picture, and the end; and
// what many watchers cost.
#include "server/api/events.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <set>

#include "kernels/base/clock.h"
#include "tests/server/api/api_support.h"
#include "tests/server/api/check_error.h"
#include "tests/support/patience.h"

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

constexpr const char* kWatch = "GET /api/events HTTP/1.1\r\nHost: a\r\n";

TEST_CASE("an event is made once a second for all who watch with the same key") {
  std::atomic<int> made{0};
  TestServer::Options options;
  options.access.api_keys = {"a", "b"};
  TestServer test(std::move(options));
  test.api.batches = [&](uint64_t key) {
    ++made;
    return std::to_string(key);
  };
  const double began = steady_seconds();
  std::vector<std::unique_ptr<HttpClient>> clients;
  std::set<double> times[3];
  const auto read = [&](size_t i) {
    const Json event = next_event(*clients[i]);
    const uint64_t key = i % 2 + 1;
    CHECK(event["batches"] == key);  // Nobody gets another's.
    times[key].insert(event["now"].get<double>());
  };
  for (size_t i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<HttpClient>(test.server->port()));
    clients[i]->send(std::string(kWatch) + "Authorization: Bearer " + (i % 2 == 0 ? "a" : "b") +
                     "\r\n\r\n");
    REQUIRE(clients[i]->read_head().status == 200);
    read(i);
  }
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < clients.size(); ++i) read(i);
  }
  const int made_until_now = made;
  const double seconds = steady_seconds() - began;
  for (const uint64_t key : {1, 2}) CHECK(static_cast<double>(times[key].size()) <= 1 + seconds);
  CHECK(made_until_now <= 2 * (1 + seconds));
  // The one whose tick made them may leave.
  clients.erase(clients.begin(), clients.begin() + 2);
  for (int round = 0; round < 2; ++round) next_event(*clients[0]);
}

TEST_CASE("a client watches so many times at most") {
  TestServer test;
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int64_t i = 0; i < kWatchersPerClientMax; ++i) {
    clients.push_back(std::make_unique<HttpClient>(test.server->port()));
    clients.back()->send(std::string(kWatch) + "\r\n");
    REQUIRE(clients.back()->read_head().status == 200);
  }
  const auto status_of_one_more = [&] {
    HttpClient client(test.server->port());
    client.send(std::string(kWatch) + "\r\n");
    return client.read_head().status;
  };
  REQUIRE(status_of_one_more() == 429);
  test::check_error(HttpClient(test.server->port()).get("/api/events"), 429, "rate_limit_error",
                    "too_many_watchers");
  HttpClient other(test.server->port(), 0, "127.0.0.2");
  other.send(std::string(kWatch) + "\r\n");
  CHECK(other.read_head().status == 200);
  clients.pop_back();  // Its place is free when the server sees that it has left.
  int status = 429;
  for (const double began = steady_seconds();
       status == 429 && steady_seconds() - began < test::kPatience;) {
    status = status_of_one_more();
  }
  CHECK(status == 200);
}

TEST_CASE("HEAD of the events is the head alone, and the connection goes on") {
  TestServer test;
  const std::string ask = "HEAD /api/events HTTP/1.1\r\nHost: a\r\n";
  HttpClient last(test.server->port());
  last.send(ask + "Connection: close\r\n\r\n");
  const HttpAnswer head = last.read_head();
  CHECK(head.status == 200);
  CHECK(head.fields.at("content-type") == "text/event-stream; charset=utf-8");
  REQUIRE(last.closed_within(test::kPatience));
  HttpClient client(test.server->port());
  client.send(ask + "\r\n");
  CHECK(client.read_head().status == 200);
  const HttpAnswer next = client.get("/version");
  CHECK(next.status == 200);
  CHECK(Json::parse(next.body)["version"] == SPILLWAY_VERSION);
}

}  // namespace
}  // namespace spillway::events_test
