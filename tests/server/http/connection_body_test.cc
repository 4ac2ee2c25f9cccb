// How a connection reads bodies that go to a sink: the time that the disk takes is not the
// client's.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "tests/server/api/api_support.h"
#include "tests/support/patience.h"
#include "tests/support/request_reports.h"

namespace spillway::connection_body_test {
namespace {

// A route whose bodies go to a sink that takes its time, POST /sink.
struct SlowSink {
  struct Sink final : BodySink {
    explicit Sink(SlowSink& given) : slow(given) {}
    std::optional<ApiError> write(std::string_view bytes) override {
      if (slow.writes++ == 0) slow.began.set_value();
      std::this_thread::sleep_for(slow.takes);
      slow.bytes += bytes.size();
      return {};
    }
    SlowSink& slow;
  };

  Route route() {
    Route made{"POST", "/sink", [](const HttpRequest&, const ExchangePtr& exchange) {
                 exchange->respond(HttpResponse());
               }};
    made.sink = [this](const HttpRequest&) -> std::variant<std::shared_ptr<BodySink>, ApiError> {
      return std::make_shared<Sink>(*this);
    };
    return made;
  }

  std::chrono::milliseconds takes{0};
  std::atomic<int> writes{0};
  std::atomic<size_t> bytes{0};
  std::promise<void> began;
};

TEST_CASE("a body that is there in time may wait for the disk") {
  SlowSink sink;
  sink.takes = std::chrono::milliseconds(600);
  TestServer::Options options;
  options.http.upload_bytes_max = 1000;
  bool again = false;
  SECTION("on a new connection") {
    options.http.header_seconds_max = 0.3;
  }
  SECTION("on a connection that had a request before") {
    options.http.idle_seconds = 0.3;
    again = true;
  }
  options.routes.push_back(sink.route());
  TestServer test(std::move(options));
  // On a busy machine the client may be late itself. Then it tries again.
  int status = 0;
  for (int round = 0; round < 50 && sink.writes == 0; ++round) {
    HttpClient client(test.server->port());
    if (again) client.get("/version");
    client.send(post_text("/sink", "body"));  // Is read in one piece
    status = client.read_answer().status;
  }
  CHECK(status == 200);
  CHECK(sink.bytes == 4);
}

TEST_CASE("the time of a body ends later by what the disk takes of it") {
  SlowSink sink;
  sink.takes = std::chrono::milliseconds(1000);
  TestServer::Options options;
  options.http.upload_bytes_max = 1000;
  SECTION("as a whole") {
    options.http.body_seconds_min = 0.5;
  }
  SECTION("in a window") {
    options.http.body_window_seconds = 0.5;
    options.http.body_window_bytes_min = 8;
  }
  options.routes.push_back(sink.route());
  TestServer test(std::move(options));
  HttpClient client(test.server->port());
  client.send("POST /sink HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\nbody");
  REQUIRE(sink.began.get_future().wait_for(std::chrono::duration<double>(test::kPatience)) ==
          std::future_status::ready);
  client.send("more");
  CHECK(client.read_answer().status == 200);
  CHECK(sink.bytes == 8);
}

TEST_CASE("a client that stops within a body is cut off also where a sink takes it") {
  SlowSink sink;
  TestServer::Options options;
  options.http.upload_bytes_max = 1000;
  options.http.body_window_seconds = 0.3;
  options.routes.push_back(sink.route());
  TestServer test(std::move(options));
  HttpClient client(test.server->port());
  client.send("POST /sink HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\nbody");
  CHECK(client.read_answer().status == 408);
}

TEST_CASE(
    "a body that is too long is refused with its route's limit, and by the name of its request") {
  SlowSink sink;
  test::RequestReports reports;
  TestServer::Options options;
  options.access.api_keys = {"key"};
  options.http.body_bytes_max = 500;
  options.http.upload_bytes_max = 1000;
  options.observer = reports.observer();
  options.routes.push_back(sink.route());
  TestServer test(std::move(options));
  const auto begin = [&](const std::string& request, const std::string& fields) {
    HttpClient client(test.server->port());
    client.send(request + " HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n\r\n");
    return client.read_answer();
  };
  const std::string key = "Authorization: Bearer key\r\n";
  const auto limit_of = [](const HttpAnswer& answer) {
    INFO(answer.body);
    CHECK(answer.status == 413);
    return Json::parse(answer.body)["error"]["max_allowed"];
  };
  CHECK(begin("POST /sink", "Content-Length: 1001").status == 401);
  CHECK(limit_of(begin("POST /sink", key + "Content-Length: 1001")) == 1000);
  CHECK(limit_of(begin("POST /sink", key + "Content-Length: 18446744073709551615")) == 1000);
  CHECK(limit_of(begin("POST /v1/completions", key + "Content-Length: 501")) == 500);
  CHECK(limit_of(begin("POST /v1/completions", key + "Content-Length: 18446744073709551615")) ==
        500);
  CHECK(limit_of(begin("GET /version", key + "Content-Length: 18446744073709551615")) ==
        HttpLimits().other_body_bytes_max);
  HttpClient chunked(test.server->port());
  chunked.send("POST /sink HTTP/1.1\r\nHost: a\r\n" + key +
               "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3e7\r\n");
  CHECK(limit_of(chunked.read_answer()) == 1000);
  for (const RequestReport& report : reports.wait(7)) {
    INFO(report.status);
    CHECK_FALSE(report.method.empty());
    CHECK_FALSE(report.path.empty());
    CHECK(report.route.empty() == (report.status == 401));
  }
}

}  // namespace
}  // namespace spillway::connection_body_test
