// Answers in parts, from the network thread and from others.
#include "server/http/exchange.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "server/http/server.h"
#include "server/http/sse.h"
#include "tests/support/http_client.h"

namespace spillway::exchange_test {
namespace {

// A server with one route, and what a client gets from it.
HttpAnswer answer_of(const Handler& handler) {
  Router router;
  router.add({.method = "GET", .path = "/", .handler = handler});
  const auto server = HttpServer::start("127.0.0.1", 0, {}, std::move(router)).value();
  HttpClient client(server->port());
  return client.get("/");
}

HttpResponse text(const std::string& body) {
  HttpResponse response;
  response.body = body;
  return response;
}

TEST_CASE("an answer's parts go out in the order of the calls, whoever makes them") {
  const HttpAnswer answer = answer_of([](const HttpRequest&, const ExchangePtr& exchange) {
    exchange->begin_stream({});
    exchange->send(sse_event("0"));
    exchange->post_work([exchange] {
      for (int i = 1; i < 500; ++i) exchange->send(sse_event(std::to_string(i)));
      exchange->post([exchange] {
        exchange->send(sse_event("500"));
        exchange->post([exchange] {
          exchange->send(sse_event("501"));
          exchange->end_stream();
          exchange->send(sse_event("too late"));
        });
      });
    });
  });
  std::string expected;
  for (int i = 0; i <= 501; ++i) expected += sse_event(std::to_string(i));
  CHECK(answer.status == 200);
  CHECK(answer.body == expected);
}

TEST_CASE("an event of megabytes arrives whole") {
  const std::string large(size_t{8} << 20, 'a');  // More than a socket takes at once
  const HttpAnswer answer = answer_of([&](const HttpRequest&, const ExchangePtr& exchange) {
    exchange->begin_stream({});
    exchange->post([exchange, &large] {
      exchange->send(sse_event(large), true);
      exchange->send(sse_event("b"));
      exchange->end_stream();
    });
  });
  CHECK(answer.body.size() == sse_event(large).size() + sse_event("b").size());
  CHECK(answer.body.ends_with("a\n\ndata: b\n\n"));
}

TEST_CASE("a task that finds no memory takes down none of those behind it") {
  const HttpAnswer answer = answer_of([](const HttpRequest&, const ExchangePtr& exchange) {
    exchange->post_work([exchange] {
      for (int i = 0; i < 3; ++i) exchange->post([] { throw std::bad_alloc(); });
      exchange->post([exchange] { exchange->respond(text("first")); });
      exchange->post([exchange] { exchange->respond(text("second")); });  // Ignored
    });
  });
  CHECK(answer.status == 200);
  CHECK(answer.body == "first");
}

TEST_CASE("work that comes when the server has stopped is freed, with what it holds") {
  const auto held = std::make_shared<int>();
  ExchangePtr asked;
  Router router;
  router.add({.method = "GET",
              .path = "/",
              .handler = [&](const HttpRequest&, const ExchangePtr& exchange) {
                asked = exchange;
                exchange->begin_stream({});
              }});
  const auto server = HttpServer::start("127.0.0.1", 0, {}, std::move(router)).value();
  HttpClient client(server->port());
  client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  REQUIRE(client.read_head().status == 200);
  asked->post([asked, held] {
    // The worker threads end meanwhile, most likely: the network's thread is the last.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    asked->post_work([asked, held] {});
    asked->post_bulk_work([asked, held] {});
  });
  server->stop();
  asked->post_work([asked, held] {});
  asked->post_bulk_work([asked, held] {});
  asked.reset();
  CHECK(held.use_count() == 1);
}

}  // namespace
}  // namespace spillway::exchange_test
