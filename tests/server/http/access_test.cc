// What the server decides before it reads a body or while a client holds its place: who may ask,
// for what, how long a body may take, and how much of the server one client may have.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <future>
#include <mutex>
#include <sstream>
#include <thread>

#include "kernels/base/clock.h"
#include "tests/server/api/api_support.h"

namespace spillway::access_test {
namespace {

std::string code_of(const HttpAnswer& answer) {
  INFO(answer.body);
  REQUIRE(answer.status != 0);
  return Json::parse(answer.body)["error"]["code"];
}

// A POST whose body of `length` bytes is announced; `fields` end in CRLF.
std::string announce(const std::string& fields, size_t length,
                     const std::string& path = "/v1/completions") {
  return "POST " + path + " HTTP/1.1\r\nHost: a\r\n" + fields +
         "Content-Length: " + std::to_string(length) + "\r\n\r\n";
}

TEST_CASE("nine connections without a key lock nobody out") {
  TestServer::Options options;
  options.access.api_keys = {"key"};
  options.http.bodies_bytes_max = 1000;
  TestServer test(options);
  std::vector<std::unique_ptr<HttpClient>> hogs;
  for (int i = 0; i < 9; ++i) {
    hogs.push_back(std::make_unique<HttpClient>(test.server->port()));
    hogs.back()->send(announce("", 900) + std::string(600, ' '));
    CHECK(hogs.back()->read_answer().status == 401);
  }
  HttpClient client(test.server->port());
  client.send(announce("Authorization: Bearer key\r\n", 614) + R"({"prompt":"a"})" +
              std::string(600, ' '));
  CHECK(client.read_answer().status == 200);
}

TEST_CASE("a head is judged before its body is asked for") {
  TestServer::Options options;
  options.access.api_keys = {"key"};
  options.http.body_bytes_max = 1000;
  TestServer test(options);
  const auto answer = [&](const std::string& head) {
    HttpClient client(test.server->port());
    client.send(head);
    HttpAnswer given = client.read_head();  // Not 100, and without a byte of the body
    CHECK(given.fields.at("connection") == "close");
    return given.status;
  };
  const std::string expect = "Expect: 100-continue\r\n";
  const std::string key = "Authorization: Bearer key\r\n" + expect;
  CHECK(answer(announce(expect, 20)) == 401);
  CHECK(answer(announce("Authorization: Bearer kez\r\n", 20)) == 401);
  CHECK(answer(announce(key, 20, "/v1/nowhere")) == 404);
  CHECK(answer(announce(key, 20, "/v1/models")) == 405);
  CHECK(answer(announce(key + "Content-Type: text/plain\r\n", 20)) == 415);
  CHECK(answer(announce(key + "Content-Type: application/json; charset=utf-16\r\n", 20)) == 415);
  CHECK(answer(announce(key + "Content-Encoding: gzip\r\n", 20)) == 415);
  CHECK(answer(announce(key, 1001)) == 413);
  HttpClient good(test.server->port());
  good.send(announce(key + "Content-Type: application/json\r\nContent-Encoding: identity\r\n", 14));
  CHECK(good.read_head().status == 100);
  good.send(R"({"prompt":"a"})");
  CHECK(good.read_answer().status == 200);
}

TEST_CASE("a route that reads no body takes none of any length") {
  TestServer::Options options;
  options.http.other_body_bytes_max = 100;
  TestServer test(options);
  HttpClient client(test.server->port());
  client.send("GET /version HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}");
  CHECK(client.read_answer().status == 200);
  client.send("GET /version HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n");
  CHECK(code_of(client.read_answer()) == "request_too_large");
}

TEST_CASE("one client's bodies leave room for others") {
  TestServer::Options options;
  options.http.body_bytes_max = 900;
  options.http.bodies_bytes_max = 2000;
  TestServer test(options);
  HttpClient holder(test.server->port());
  holder.send(announce("", 900) + std::string(600, ' '));
  // The holder's bytes count when the server has read them.
  const auto status = [&] {
    HttpClient same(test.server->port());
    same.send(announce("Expect: 100-continue\r\n", 900));
    return same.read_head().status;
  };
  int first = status();
  for (int i = 0; i < 1000 && first == 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    first = status();
  }
  CHECK(first == 429);
  HttpClient other(test.server->port(), 0, "127.0.0.2");
  other.send(announce("", 900) + R"({"prompt":"a"})" + std::string(886, ' '));
  CHECK(other.read_answer().status == 200);
}

TEST_CASE("a body that always moves a little still ends in time") {
  TestServer::Options options;
  options.http.body_window_seconds = 0.2;
  options.http.body_window_bytes_min = 1;
  options.http.body_seconds_min = 0.6;
  options.http.body_bytes_per_second_min = 1e6;
  TestServer test(options);
  HttpClient client(test.server->port());
  client.send(announce("", 1000));
  int sent = 0;
  while (sent < 1000 && client.send(" ")) {
    ++sent;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (sent == 100) break;  // Two seconds and more
  }
  CHECK(code_of(client.read_answer()) == "request_timeout");
}

TEST_CASE("HEAD answers as GET does, without a body") {
  TestServer test;
  HttpClient client(test.server->port());  // One connection: a body would begin the next answer.
  const std::string end = " HTTP/1.1\r\nHost: a\r\n\r\n";
  for (const char* path : {"/version", "/health", "/v1/models", "/v1/nothing", "/v1/completions",
                           "/v1/models/unknown"}) {
    INFO(path);
    client.send("HEAD " + std::string(path) + end);
    const HttpAnswer head = client.read_head();
    client.send("GET " + std::string(path) + end);
    const HttpAnswer whole = client.read_answer();
    CHECK(head.status == whole.status);
    CHECK(head.fields.at("content-type") == whole.fields.at("content-type"));
    if (std::string(path) != "/v1/nothing") {  // Its message names the method.
      CHECK(head.fields.at("content-length") == whole.fields.at("content-length"));
    }
    CHECK(head.fields.at("connection") == "keep-alive");
    CHECK(whole.complete);
  }
  client.send("DELETE /version" + end);
  CHECK(client.read_answer().fields.at("allow") == "GET, HEAD");
}

TEST_CASE("models whose names have slashes are found") {
  TestServer::Options options;
  options.model_names = {"facebook/opt-125m", "a%b"};
  TestServer test(options);
  HttpClient client(test.server->port());
  for (const char* path : {"/v1/models/facebook/opt-125m", "/v1/models/facebook%2Fopt-125m"}) {
    const HttpAnswer answer = client.get(path);
    CHECK(answer.status == 200);
    CHECK(Json::parse(answer.body)["id"] == "facebook/opt-125m");
  }
  CHECK(client.get("/v1/models/a%25b").status == 200);
  CHECK(client.get("/v1/models/a%b").status == 404);
  CHECK(client.get("/v1/models/facebook").status == 404);
}

TEST_CASE("a web page of another site makes nothing run") {
  TestServer test;
  const std::string fields = "Origin: https://evil.example\r\n";
  HttpClient client(test.server->port());
  client.send(announce(fields, 14) + R"({"prompt":"a"})");
  CHECK(code_of(client.read_answer()) == "forbidden_origin");
  CHECK(test.engine.submitted() == 0);
  HttpClient door(test.server->port());
  door.send("GET /health HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n");
  CHECK(door.read_answer().status == 200);
  door.send("OPTIONS /v1/completions HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n");
  const HttpAnswer asked = door.read_answer();
  CHECK(asked.status == 403);
  CHECK_FALSE(asked.fields.contains("access-control-allow-origin"));
}

TEST_CASE("a web page of an allowed site may ask and read") {
  TestServer::Options options;
  options.access.api_keys = {"key"};
  options.access.allowed_origins = {"https://ui.example"};
  TestServer test(options);
  const std::string fields = "Origin: https://ui.example\r\n";
  HttpClient client(test.server->port());
  client.send("OPTIONS /v1/completions HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n");
  const HttpAnswer may = client.read_answer();
  CHECK(may.status == 200);
  CHECK(may.fields.at("access-control-allow-origin") == "https://ui.example");
  CHECK(may.fields.at("access-control-allow-methods") == "POST");
  CHECK(may.fields.at("access-control-allow-headers").find("authorization") != std::string::npos);
  const std::string key = "Authorization: Bearer key\r\n";
  for (const char* body : {R"({"prompt":"a"})", R"({"prompt":"a","stream":true})"}) {
    client.send(announce(fields + key, std::string(body).size()) + body);
    const HttpAnswer answer = client.read_answer();
    CHECK(answer.status == 200);
    CHECK(answer.fields.at("access-control-allow-origin") == "https://ui.example");
    CHECK(answer.fields.at("vary") == "Origin");
  }
  client.send(announce(key, 14) + R"({"prompt":"a"})");
  CHECK_FALSE(client.read_answer().fields.contains("access-control-allow-origin"));
  client.send(announce(fields, 14) + R"({"prompt":"a"})");
  CHECK(client.read_answer().status == 401);
}

TEST_CASE("a client that has said all it will say still gets a short answer") {
  TestServer::Options options;
  options.http.half_close_seconds = 5;
  TestServer test(options);
  for (const std::string& request : {std::string("GET /version HTTP/1.1\r\nHost: a\r\n\r\n"),
                                     announce("", 14) + R"({"prompt":"a"})"}) {
    HttpClient client(test.server->port());
    client.send(request);
    client.half_close();
    const HttpAnswer answer = client.read_answer();
    CHECK(answer.status == 200);
    CHECK(answer.complete);
    CHECK(client.closed_within(5));
  }
}

TEST_CASE("silent peers are probed") {
  TestServer test;
  HttpClient client(test.server->port());
  CHECK(client.get("/version").status == 200);
  // Of the server's end of the connection: local port, state 01 (established), timer 02 (probe).
  char local[16];
  std::snprintf(local, sizeof local, "0100007F:%04X", test.server->port());
  const auto probed = [&] {
    std::ifstream table("/proc/net/tcp");
    for (std::string line; std::getline(table, line);) {
      std::istringstream words(line);
      std::string number, from, to, state, queues, timer;
      words >> number >> from >> to >> state >> queues >> timer;
      if (from == local && state == "01" && timer.starts_with("02:")) return true;
    }
    return false;
  };
  bool seen = probed();
  for (int i = 0; i < 200 && !seen; ++i) {  // Until the answer is acknowledged
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    seen = probed();
  }
  CHECK(seen);
}

TEST_CASE("bulk work holds up no other work") {
  std::mutex mutex;
  std::condition_variable changed;
  bool released = false;
  const auto wait = [&] {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return released; });
  };
  Router router;
  router.add({"GET", "/bulk", [&](const HttpRequest&, const ExchangePtr& exchange) {
                exchange->post_bulk_work([&, exchange] {
                  wait();
                  exchange->respond(HttpResponse());
                });
              }});
  router.add({"GET", "/short", [](const HttpRequest&, const ExchangePtr& exchange) {
                exchange->post_work([exchange] { exchange->respond(HttpResponse()); });
              }});
  const auto server = HttpServer::start("127.0.0.1", 0, {}, std::move(router)).value();
  std::vector<std::unique_ptr<HttpClient>> waiting;
  for (const char* path : {"/bulk", "/bulk", "/bulk", "/bulk"}) {
    waiting.push_back(std::make_unique<HttpClient>(server->port()));
    waiting.back()->send("GET " + std::string(path) + " HTTP/1.1\r\nHost: a\r\n\r\n");
  }
  for (int i = 0; i < 3; ++i) CHECK(HttpClient(server->port()).get("/short").status == 200);
  {
    const std::lock_guard lock(mutex);
    released = true;
  }
  changed.notify_all();
  for (const auto& client : waiting) CHECK(client->read_answer().status == 200);
}

TEST_CASE("a request carries whose it is to the scheduler: its key's, else its address's") {
  const auto client_of_last = [](TestServer& test) { return test.engine.seen().back().client; };
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  SECTION("keys") {
    TestServer::Options options;
    options.access.api_keys = {"one", "two"};
    TestServer test(options);
    std::vector<uint64_t> clients;
    for (const char* key : {"one", "two", "one"}) {
      HttpClient client(test.server->port(), 0, "127.0.0.2");
      const std::string fields = "Authorization: Bearer " + std::string(key) + "\r\n";
      REQUIRE(client.post("/v1/completions", body, fields).status == 200);
      clients.push_back(client_of_last(test));
    }
    CHECK(clients[0] != 0);
    CHECK(clients[0] != clients[1]);
    CHECK(clients[0] == clients[2]);
  }
  SECTION("addresses") {
    TestServer test;
    HttpClient here(test.server->port()), also_here(test.server->port());
    HttpClient there(test.server->port(), 0, "127.0.0.2");
    std::vector<uint64_t> clients;
    for (HttpClient* client : {&here, &there, &also_here}) {
      REQUIRE(client->post("/v1/completions", body).status == 200);
      clients.push_back(client_of_last(test));
    }
    CHECK(clients[0] != 0);
    CHECK(clients[0] != clients[1]);
    CHECK(clients[0] == clients[2]);
    // All sequences of a request are the client's.
    REQUIRE(here.post("/v1/completions", R"({"prompt":["a","b"],"n":2})").status == 200);
    const std::vector<Request> seen = test.engine.seen();
    for (size_t i = seen.size() - 4; i < seen.size(); ++i) CHECK(seen[i].client == clients[0]);
  }
}

// A route whose handler keeps the thread for bulk work busy until it is let go.
struct BulkGate {
  Route route() {
    return {"GET", "/hold", [this](const HttpRequest&, const ExchangePtr& exchange) {
              exchange->post_bulk_work([this, exchange] {
                std::unique_lock lock(mutex);
                held = true;
                changed.notify_all();
                changed.wait(lock, [&] { return open; });
                exchange->respond(HttpResponse());
              });
            }};
  }
  void wait_held() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return held; });
  }
  void let_go() {
    const std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool held = false, open = false;
};

TEST_CASE("a short completion waits neither for long bodies nor for long answers") {
  BulkGate gate;
  TestServer::Options options;
  options.routes.push_back(gate.route());
  TestServer test(std::move(options));
  HttpClient holder(test.server->port());
  holder.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  gate.wait_held();
  const Json long_body = {{"prompt", "a"}, {"max_tokens", 1}, {"user", std::string(100'000, 'u')}};
  const Json long_answer = {{"prompt", "a"}, {"max_tokens", 100}, {"n", 20}, {"logprobs", 20}};
  std::vector<std::future<int>> long_ones;
  for (const Json& body : {long_body, long_answer}) {
    long_ones.push_back(std::async(
        std::launch::async, [&test, body] { return test.post("/v1/completions", body).status; }));
  }
  CHECK(test.engine.wait_submitted(20));  // The one with the long answer runs.
  for (int i = 0; i < 3; ++i) {
    CHECK(test.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status == 200);
  }
  for (auto& one : long_ones) {
    CHECK(one.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  }
  gate.let_go();
  CHECK(holder.read_answer().status == 200);
  for (auto& one : long_ones) CHECK(one.get() == 200);
}

TEST_CASE("a stream's long chunk is not built where all connections are served") {
  BulkGate gate;
  TestServer::Options options;
  options.routes.push_back(gate.route());
  TestServer test(std::move(options));
  HttpClient holder(test.server->port());
  holder.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  gate.wait_held();
  const Json body = {{"prompt", std::string(100, 'a')},
                     {"max_tokens", 3},
                     {"logprobs", 20},
                     {"echo", true},
                     {"stream", true},
                     {"temperature", 0}};
  HttpClient streaming(test.server->port());
  streaming.send(post_text("/v1/completions", body.dump()));
  CHECK(streaming.read_head().status == 200);
  REQUIRE(test.engine.wait_submitted(1));
  CHECK(test.engine.wait_idle());
  CHECK(test.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status == 200);
  // The scores of its prompt wait for the other work.
  auto first = std::async(std::launch::async, [&] { return streaming.read_chunk(); });
  CHECK(first.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  gate.let_go();
  CHECK(holder.read_answer().status == 200);
  std::vector<std::string> chunks = {first.get()};
  for (std::string chunk = streaming.read_chunk(); !chunk.empty(); chunk = streaming.read_chunk()) {
    chunks.push_back(chunk);
  }
  const std::vector<std::string> data = sse_data(chunks);
  REQUIRE(data.size() >= 3);
  CHECK(data.back() == "[DONE]");
  std::string text;
  for (size_t i = 0; i + 1 < data.size(); ++i) {
    text += Json::parse(data[i])["choices"][0]["text"].get<std::string>();
  }
  CHECK(text == std::string(100, 'a') + fake_text(std::string(100, 'a'), 3));
}

// A head by a trusted proxy at 127.0.0.1 for a client.
std::string forwarded(const std::string& client) {
  return "GET /version HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: " + client + "\r\n\r\n";
}

TEST_CASE("behind a trusted proxy connections are counted for its clients") {
  TestServer::Options options;
  options.http.connections_per_peer_max = 1;
  options.http.trusted_proxies.ranges = {IpRange::parse("127.0.0.1").value()};
  options.access.api_keys = {};
  BulkGate gate;
  options.routes.push_back(gate.route());
  TestServer test(std::move(options));
  HttpClient first(test.server->port()), second(test.server->port()), third(test.server->port());
  const std::string hold = "GET /hold HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.1\r\n\r\n";
  first.send(hold);
  gate.wait_held();
  second.send(forwarded("203.0.113.2"));
  CHECK(second.read_answer().status == 200);
  second.send(forwarded("203.0.113.1"));  // Another request on the same connection
  CHECK(code_of(second.read_answer()) == "too_many_connections");
  third.send(forwarded("198.51.100.7, 203.0.113.1"));  // The client wrote the first one itself.
  CHECK(code_of(third.read_answer()) == "too_many_connections");
  gate.let_go();
  CHECK(first.read_answer().status == 200);
  first.send(forwarded("203.0.113.3"));
  CHECK(first.read_answer().status == 200);
  // Between requests a connection is the proxy's, which may have any number.
  HttpClient fourth(test.server->port());
  fourth.send(forwarded("203.0.113.3"));
  CHECK(fourth.read_answer().status == 200);
}

TEST_CASE("X-Forwarded-For of anybody else changes nothing") {
  TestServer::Options options;
  options.http.connections_per_peer_max = 1;
  options.http.trusted_proxies.ranges = {IpRange::parse("10.0.0.0/8").value()};
  TestServer test(std::move(options));
  HttpClient first(test.server->port());
  first.send(forwarded("203.0.113.1"));
  CHECK(first.read_answer().status == 200);
  HttpClient second(test.server->port());
  CHECK(code_of(second.read_answer()) == "too_many_connections");
}

TEST_CASE("a client behind a proxy is who its address says, for turns, too") {
  TestServer::Options options;
  options.http.trusted_proxies.ranges = {IpRange::parse("127.0.0.1").value()};
  TestServer test(std::move(options));
  test.engine.hold();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (const char* address : {"203.0.113.1", "203.0.113.2", "203.0.113.1"}) {
    clients.push_back(std::make_unique<HttpClient>(test.server->port()));
    clients.back()->send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":1})",
                                   "X-Forwarded-For: " + std::string(address) + "\r\n"));
    REQUIRE(test.engine.wait_submitted(static_cast<int64_t>(clients.size())));
  }
  const std::vector<Request> seen = test.engine.seen();
  CHECK(seen[0].client != seen[1].client);
  CHECK(seen[0].client == seen[2].client);
  test.engine.release();
  for (const auto& client : clients) CHECK(client->read_answer().status == 200);
}

std::string bearer(const std::string& key) {
  return "Authorization: Bearer " + key + "\r\n";
}

TEST_CASE("a key has no more connections than its line allows") {
  TestServer::Options options;
  options.access.api_keys = {"one", "two"};
  options.access.key_limits.resize(1);
  options.access.key_limits[0].connections = 1;
  options.access.key_limits[0].name = "team";
  TestServer test(std::move(options));
  const auto get = [&](HttpClient& client, const std::string& key) {
    client.send("GET /version HTTP/1.1\r\nHost: a\r\n" + bearer(key) + "\r\n");
    return client.read_answer();
  };
  HttpClient second(test.server->port());
  {
    HttpClient first(test.server->port());
    CHECK(get(first, "one").status == 200);
    CHECK(get(first, "one").status == 200);
    CHECK(get(second, "two").status == 200);
    const HttpAnswer refused = get(second, "one");
    CHECK(refused.status == 429);
    CHECK(code_of(refused) == "key_limit_exceeded");
    CHECK(refused.body.find("team") != std::string::npos);
    CHECK(refused.body.find("connections=1") != std::string::npos);
    CHECK(second.closed_within(5));
    CHECK(get(first, "two").status == 200);  // It is the other key's now.
    HttpClient third(test.server->port());
    CHECK(get(third, "one").status == 200);
  }
  const double until = steady_seconds() + test::kPatience;
  bool free = false;
  while (!free && steady_seconds() < until) {
    HttpClient later(test.server->port());
    free = get(later, "one").status == 200;
  }
  CHECK(free);
}

TEST_CASE("a key's sequences and tokens are limited by its line, and those of others are not") {
  TestServer::Options options;
  options.access.api_keys = {"one", "two", "three"};
  options.access.key_limits.resize(3);
  options.access.key_limits[0].slots = 3;
  options.access.key_limits[1].tokens_per_minute = 60;
  options.access.key_limits[2].priority_min = 2;
  options.access.key_limits[2].priority_max = 5;
  TestServer test(std::move(options));
  const auto ask = [&](const std::string& key, const Json& body) {
    return HttpClient(test.server->port()).post("/v1/completions", body.dump(), bearer(key));
  };
  test.engine.hold();
  HttpClient holder(test.server->port());
  holder.send(
      post_text("/v1/completions", R"({"prompt":"a","n":2,"max_tokens":1})", bearer("one")));
  REQUIRE(test.engine.wait_submitted(2));
  const HttpAnswer more = ask("one", {{"prompt", "a"}, {"n", 2}});
  CHECK(more.status == 429);
  CHECK(code_of(more) == "key_limit_exceeded");
  CHECK(more.body.find("slots=3") != std::string::npos);
  CHECK(std::stoi(more.fields.at("retry-after")) >= 1);
  const HttpAnswer never = ask("one", {{"prompt", "a"}, {"n", 4}});
  CHECK(never.status == 400);
  test.engine.release();
  CHECK(holder.read_answer().status == 200);
  CHECK(ask("one", {{"prompt", "a"}, {"n", 3}, {"max_tokens", 1}}).status == 200);

  // 2 tokens of the prompt ("a" and the one in front) and up to 40 more, of which 40 are made
  CHECK(ask("two", {{"prompt", "a"}, {"max_tokens", 40}}).status == 200);
  const HttpAnswer tokens = ask("two", {{"prompt", "a"}, {"max_tokens", 40}});
  CHECK(tokens.status == 429);
  CHECK(tokens.body.find("tokens-per-minute=60") != std::string::npos);
  CHECK(std::stoi(tokens.fields.at("retry-after")) > 5);  // 24 or so are missing, at 1 a second.
  CHECK(ask("two", {{"prompt", "a"}, {"max_tokens", 100}}).status == 400);

  CHECK(ask("three", {{"prompt", "a"}, {"max_tokens", 1}}).status == 200);
  CHECK(test.engine.seen().back().priority == 2);  // Nearest to 0
  CHECK(ask("three", {{"prompt", "a"}, {"max_tokens", 1}, {"priority", 5}}).status == 200);
  for (const int priority : {1, 6}) {
    const HttpAnswer refused =
        ask("three", {{"prompt", "a"}, {"max_tokens", 1}, {"priority", priority}});
    CHECK(refused.status == 403);
    CHECK(code_of(refused) == "priority_not_allowed");
    CHECK(refused.body.find("2 to 5") != std::string::npos);
  }
}

TEST_CASE("long texts to tokenise do not hold up a completion") {
  TestServer test;
  const std::string text(size_t{128} << 10, 'a');
  const std::string body = Json({{"prompt", text}}).dump();
  std::atomic<int> tokenised{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      HttpClient client(test.server->port());
      if (client.post("/tokenize", body).status == 200) ++tokenised;
    });
  }
  while (test.api.admission.held() < 4) std::this_thread::yield();
  CHECK(test.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status == 200);
  CHECK(tokenised < 4);
  for (std::thread& thread : threads) thread.join();
  CHECK(tokenised == 4);
}

}  // namespace
}  // namespace spillway::access_test
