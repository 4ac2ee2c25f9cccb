// One connection's life: the order in which its bytes are read, and how long it may say nothing.
#include <catch2/catch.hpp>
#include <future>

#include "tests/server/api/api_support.h"
#include "tests/support/patience.h"

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
