// What is reported of a request when it is over: one that was answered, refused, cut short, or left
// by its client.
#include "server/http/request_record.h"

#include <catch2/catch.hpp>
#include <future>
#include <optional>
#include <string>

#include "server/http/http_counts.h"
#include "tests/server/api/api_support.h"
#include "tests/support/request_reports.h"

namespace spillway::request_record_test {
namespace {

using test::RequestReports;

struct Observed {
  explicit Observed(TestServer::Options options = {}) {
    options.observer = reports.observer();
    server.emplace(std::move(options));
  }
  uint16_t port() const { return server->server->port(); }

  RequestReports reports;
  std::optional<TestServer> server;
};

TEST_CASE("a completion that was answered whole") {
  Observed test;
  HttpClient client(test.port());
  const HttpAnswer answer =
      client.post("/v1/completions?trace=1", R"({"prompt":"hello","max_tokens":5,"n":2})",
                  "X-Request-Id: mine-7\r\n");
  REQUIRE(answer.status == 200);
  const RequestReport report = test.reports.next();
  CHECK(report.id == "mine-7");
  CHECK(report.id == answer.fields.at("x-request-id"));
  CHECK(report.client == "127.0.0.1");
  CHECK(report.key.empty());
  CHECK(report.method == "POST");
  CHECK(report.path == "/v1/completions");  // The query may hold anything.
  CHECK(report.route == "/v1/completions");
  CHECK(report.status == 200);
  CHECK(report.whole);
  CHECK(report.error.empty());
  CHECK(report.seconds > 0);
  REQUIRE(report.work.has_value());
  CHECK(report.work->prompt_tokens == 6);  // With the token that begins a text
  CHECK(report.work->cached_tokens == 0);
  CHECK(report.work->generated_tokens == 10);
  CHECK(report.work->queue_seconds >= 0);
  REQUIRE(report.work->first_token.has_value());
  CHECK(*report.work->first_token >= report.began);
  CHECK(*report.work->first_token <= report.began + report.seconds);
  CHECK(std::string(report.work->finish_reason) == "length");
}

TEST_CASE("a chat as a stream, on a connection that goes on") {
  FakeScheduler::Options engine;
  engine.token = [](const Request&, int64_t t) { return t < 3 ? 'x' + 1 : 0; };
  TestServer::Options options;
  options.engine = engine;
  Observed test(std::move(options));
  HttpClient client(test.port());
  for (int i = 0; i < 2; ++i) {
    const HttpAnswer answer = client.post(
        "/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"stream":true})");
    REQUIRE(answer.status == 200);
    const RequestReport report = test.reports.next();
    CHECK(report.id == answer.fields.at("x-request-id"));
    CHECK(report.whole);
    REQUIRE(report.work.has_value());
    CHECK(report.work->generated_tokens == 4);  // The stop token, too
    CHECK(std::string(report.work->finish_reason) == "stop");
  }
}

TEST_CASE("requests that are refused say why, and did no work") {
  TestServer::Options options;
  options.access.api_keys = {"first", "second"};
  Observed test(std::move(options));
  HttpClient client(test.port());
  const std::string key = "Authorization: Bearer second\r\n";
  const auto report_of = [&](int status) {
    const RequestReport report = test.reports.next();
    CHECK(report.status == status);
    CHECK(report.whole);
    CHECK_FALSE(report.work.has_value());
    return report;
  };
  CHECK(client.get("/v1/models").status == 401);
  RequestReport report = report_of(401);
  CHECK(report.error == "invalid_api_key");
  CHECK(report.path == "/v1/models");
  CHECK(report.route.empty());
  CHECK(report.key.empty());

  CHECK(client.post("/v1/completions", R"({"prompt":5})", key).status == 400);
  report = report_of(400);
  CHECK(report.error == "invalid_type");
  CHECK(report.route == "/v1/completions");
  CHECK(report.key == "key-2");

  test.server->engine.refuse_after(0, Status(Code::kCapacity, "full"));
  CHECK(client.post("/v1/completions", R"({"prompt":"a"})", key).status == 429);
  CHECK(report_of(429).error == "queue_full");

  CHECK(client.post("/nowhere", "{}", key).status == 404);
  CHECK(report_of(404).error == "unknown_url");
  CHECK(client.get("/health").status == 200);
  CHECK(report_of(200).error.empty());

  // A head that cannot be read: nobody knows what was asked.
  HttpClient broken(test.port());
  broken.send("GARBAGE\r\n\r\n");
  const HttpAnswer answer = broken.read_answer();
  CHECK(answer.status == 400);
  report = report_of(400);
  CHECK(report.id == answer.fields.at("x-request-id"));
  CHECK(report.method.empty());
  CHECK(report.path.empty());
  CHECK(report.client == "127.0.0.1");
}

TEST_CASE("a client that leaves before its answer is reported when its work is over") {
  Observed test;
  SECTION("with what it had asked for") {
    test.server->engine.hold();
    HttpClient leaving(test.port());
    leaving.send(post_text("/v1/completions", R"({"prompt":"abc","max_tokens":9})"));
    REQUIRE(test.server->engine.wait_submitted(1));
    leaving.reset();
    const RequestReport report = test.reports.next();
    CHECK(report.status == 0);
    CHECK(reported_status(report) == 499);
    CHECK_FALSE(report.whole);
    REQUIRE(report.work.has_value());
    CHECK(report.work->prompt_tokens == 4);
    CHECK(report.work->generated_tokens == 0);
    CHECK_FALSE(report.work->first_token.has_value());
    CHECK(std::string(report.work->finish_reason) == "abort");
  }
  SECTION("also while its body is on the way") {
    HttpClient leaving(test.port());
    leaving.send(
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n");
    REQUIRE(leaving.read_head().status == 100);  // The head has been read.
    leaving.reset();
    const RequestReport report = test.reports.next();
    CHECK(report.path == "/v1/completions");
    CHECK(report.status == 0);
    CHECK_FALSE(report.whole);
    CHECK_FALSE(report.work.has_value());
  }
}

TEST_CASE("a client that leaves its stream is reported with the tokens so far") {
  std::promise<void> gate;
  TestServer::Options options;
  // The fourth token waits until the client has read the first, and the engine is to stop.
  options.engine.token = [opened = gate.get_future().share()](const Request&, int64_t t) {
    if (t == 3) opened.wait();
    return 'a' + 1;
  };
  Observed test(std::move(options));
  std::promise<void> opens = std::move(gate);  // A test that fails opens it, too.
  HttpClient leaving(test.port());
  leaving.send(post_text("/v1/completions", R"({"prompt":"abc","max_tokens":90,"stream":true})"));
  REQUIRE(leaving.read_head().status == 200);
  REQUIRE_FALSE(leaving.read_chunk().empty());
  test.server->engine.hold();
  opens.set_value();
  leaving.reset();
  const RequestReport report = test.reports.next();
  CHECK(report.status == 200);
  CHECK_FALSE(report.whole);
  REQUIRE(report.work.has_value());
  CHECK(report.work->generated_tokens >= 1);
  CHECK(report.work->generated_tokens < 90);
  CHECK(report.work->first_token.has_value());
  CHECK(std::string(report.work->finish_reason) == "abort");
}

TEST_CASE("an engine's error is an error of the answer, or of the stream that had begun") {
  TestServer::Options options;
  options.engine.fail_after_tokens = 2;
  Observed test(std::move(options));
  HttpClient client(test.port());
  CHECK(client.post("/v1/completions", R"({"prompt":"a"})").status == 500);
  RequestReport report = test.reports.next();
  CHECK(report.error == "engine_error");
  REQUIRE(report.work.has_value());
  CHECK(std::string(report.work->finish_reason) == "error");
  CHECK(report.work->generated_tokens == 2);

  CHECK(client.post("/v1/completions", R"({"prompt":"a","stream":true})").status == 200);
  report = test.reports.next();
  CHECK(report.status == 200);
  CHECK(report.error == "engine_error");
  CHECK(report.whole);
}

TEST_CASE("a connection beyond the limit is a request that nobody could read") {
  TestServer::Options options;
  options.http.connections_per_peer_max = 1;
  Observed test(std::move(options));
  HttpClient first(test.port());
  CHECK(first.get("/health").status == 200);
  CHECK(test.reports.next().status == 200);
  HttpClient second(test.port());
  CHECK(second.read_answer().status == 503);
  const RequestReport report = test.reports.next();
  CHECK(report.error == "too_many_connections");
  CHECK(report.method.empty());
}

TEST_CASE("requests that the server's end cuts off are reported, too") {
  RequestReports reports;
  std::optional<HttpClient> client;  // Stays longer than the server
  {
    TestServer::Options options;
    options.observer = reports.observer();
    TestServer test(options);
    test.engine.hold();
    client.emplace(test.server->port());
    client->send(post_text("/v1/completions", R"({"prompt":"abc"})"));
    REQUIRE(test.engine.wait_submitted(1));
  }
  const RequestReport report = reports.next();
  CHECK_FALSE(report.whole);
}

}  // namespace
}  // namespace spillway::request_record_test
