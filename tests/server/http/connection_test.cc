// One connection's life: the order in which its bytes are read, and how long it may say nothing.
#include <catch2/catch.hpp>
#include <future>

#include "tests/server/api/api_support.h"
#include "tests/support/patience.h"
#include "tests/support/request_reports.h"

namespace spillway::connection_test {
namespace {

TEST_CASE("bytes that came during an answer are read before newer ones") {
  std::promise<ExchangePtr> asked;
  std::promise<void> blocked, go_on;
  TestServer::Options options;
  options.routes.push_back({"GET", "/hold", [&](const HttpRequest&, const ExchangePtr& exchange) {
                              asked.set_value(exchange);
                            }});
  TestServer test(std::move(options));
  HttpClient client(test.server->port());
  client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  ExchangePtr held = asked.get_future().get();
  client.send("GET /version HTTP/1.1\r\nHo");
  // The network thread has read that when it answers another connection.
  CHECK(HttpClient(test.server->port()).get("/version").status == 200);
  // The rest is there, unread, when the answer has been written.
  held->post([&] {
    blocked.set_value();
    go_on.get_future().wait();
    held->respond(HttpResponse());
  });
  blocked.get_future().wait();
  client.send("st: a\r\nX-Request-Id: mine\r\n\r\n");
  go_on.set_value();
  CHECK(client.read_answer().status == 200);
  const HttpAnswer next = client.read_answer();
  CHECK(next.status == 200);
  CHECK(next.fields.at("x-request-id") == "mine");
}

TEST_CASE("a connection has the limits that hold when its request begins") {
  TestServer::Options options;
  options.http.body_bytes_max = 100;
  options.http.header_bytes_max = 300;
  TestServer test(options);
  HttpClient client(test.server->port());
  CHECK(client.get("/version").status == 200);
  test.server->serve(HttpLimits(), make_router(test.api, Access()));
  const std::string body = R"({"prompt":"a"})" + std::string(1000, ' ');
  const std::string field = "X: " + std::string(1000, 'x') + "\r\n";
  CHECK(client.post("/v1/completions", body).status == 200);
  CHECK(client.post("/v1/completions", body, field).status == 200);
}

TEST_CASE("a request that is refused while it is read keeps its id, and HEAD has no body") {
  test::RequestReports reports;
  TestServer::Options options;
  options.http.header_bytes_max = 1000;
  options.http.body_bytes_max = 100;
  options.observer = reports.observer();
  TestServer test(std::move(options));
  const std::string fields = "Host: a\r\nx-REQUEST-id:  mine\r\n";
  const std::string chunked = "Transfer-Encoding: chunked\r\n\r\n";
  const auto refused = [&](const std::string& bytes, int status, const std::string& path) {
    INFO(bytes);
    HttpClient client(test.server->port());
    client.send(bytes);
    const HttpAnswer answer = client.read_answer();
    CHECK(answer.status == status);
    CHECK(answer.fields.at("x-request-id") == "mine");
    const RequestReport report = reports.next();
    CHECK(report.id == "mine");
    CHECK(report.path == path);
  };
  const std::string post = "POST /v1/completions HTTP/1.1\r\n" + fields;
  refused(post + "Content-Length: 101\r\n\r\n", 413, "/v1/completions");
  refused(post + chunked + "65\r\n", 413, "/v1/completions");
  refused(post + chunked + "x\r\n", 400, "/v1/completions");
  refused(post + "Content-Length: x\r\n\r\n", 400, "");
  refused("POST x HTTP/1.1\r\n" + fields + "\r\n", 400, "");
  refused(post + "X: " + std::string(1000, 'x'), 431, "");

  HttpClient client(test.server->port());
  client.send("HEAD /version HTTP/1.1\r\nX-Request-Id: mine\r\n\r\n");  // Without a Host
  const HttpAnswer head = client.read_head();
  CHECK(head.status == 400);
  CHECK(head.fields.at("x-request-id") == "mine");
  CHECK(client.closed_within(test::kPatience));

  HttpClient odd(test.server->port());
  odd.send("GET /version HTTP/1.1\r\nX-Request-Id: a b\r\n\r\n");
  CHECK(odd.read_answer().fields.at("x-request-id") == "req-refused-1");
}

TEST_CASE("a request that comes too slowly keeps its id as far as it came") {
  TestServer::Options options;
  options.http.header_seconds_max = 0.3;
  TestServer test(options);
  // A connection without a byte in this time is closed: then this client was late, and tries again.
  HttpAnswer answer;
  for (int round = 0; round < 50 && answer.status == 0; ++round) {
    HttpClient client(test.server->port());
    client.send("GET /version HTTP/1.1\r\nX-Request-Id: mine\r\nX: ");
    answer = client.read_answer();
  }
  REQUIRE(answer.status == 408);
  CHECK(answer.fields.at("x-request-id") == "mine");
}

TEST_CASE("line ends alone keep no connection open") {
  TestServer::Options options;
  options.http.idle_seconds = 0.2;
  options.http.header_seconds_max = 1000;
  TestServer test(options);
  for (const char* bytes : {"\r\n", "\r", "\r\n\r\n\r"}) {
    HttpClient client(test.server->port());
    CHECK(client.get("/version").status == 200);
    client.send(bytes);
    CHECK(client.closed_within(test::kPatience));
  }
}

}  // namespace
}  // namespace spillway::connection_test
