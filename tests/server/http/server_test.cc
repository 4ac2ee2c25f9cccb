// The server over real sockets: every error of the API's table, limits of time and size,
// keep-alive, clients that leave, graceful stop.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/server/api/api_support.h"
#include "tests/server/api/check_error.h"
#include "tests/support/patience.h"

namespace spillway::server_test {
namespace {

using test::check_error;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

constexpr const char* kInvalid = "invalid_request_error";

// Waits for something that another thread is about to do.
bool soon(const std::function<bool()>& condition) {
  const auto start = Clock::now();
  while (!condition()) {
    if (seconds_since(start) > test::kPatience) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

TEST_CASE("a completion over HTTP") {
  TestServer test;
  const HttpAnswer answer =
      test.post("/v1/completions", {{"prompt", "hi"}, {"max_tokens", 5}, {"temperature", 0}});
  CHECK(answer.status == 200);
  CHECK(answer.fields.at("content-type") == "application/json");
  CHECK(Json::parse(answer.body)["choices"][0]["text"] == fake_text("hi", 5));
  CHECK_FALSE(answer.fields.contains("x-ignored-parameters"));
  const HttpAnswer ignored =
      test.post("/v1/completions", {{"prompt", "hi"}, {"zig", 1}, {"zag", 2}});
  CHECK(ignored.status == 200);
  CHECK(ignored.fields.at("x-ignored-parameters") == "zag, zig");
}

TEST_CASE("every error of the table") {
  TestServer test;
  HttpClient client(test.server->port());  // One connection: API errors do not end it.
  const std::string path = "/v1/completions";
  const auto post = [&](const std::string& body) { return client.post(path, body); };
  check_error(post(R"({"model":"x","prompt":"a"})"), 404, kInvalid, "model_not_found");
  check_error(post("{"), 400, kInvalid, "invalid_json");
  check_error(post(R"({"prompt":5})"), 400, kInvalid, "invalid_type");
  check_error(post("{}"), 400, kInvalid, "missing_required_parameter");
  check_error(post(R"({"prompt":"a","temperature":3})"), 400, kInvalid, "invalid_value");
  check_error(post(R"({"prompt":"a","max_tokens":-1})"), 400, kInvalid, "invalid_value");
  check_error(post(R"({"prompt":"a","max_tokens":1000})"), 400, kInvalid,
              "context_length_exceeded");
  check_error(post(R"({"prompt":"a","suffix":"b"})"), 400, kInvalid, "unsupported_parameter");
  check_error(client.get("/v1/nothing"), 404, kInvalid, "unknown_url");
  const HttpAnswer method = client.get(path);
  check_error(method, 405, kInvalid, "method_not_allowed");
  CHECK(method.fields.at("allow") == "POST");
  client.send("POST " + path +
              " HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n"
              "Content-Length: 2\r\n\r\n{}");
  check_error(client.read_answer(), 415, kInvalid, "unsupported_media_type");
  test.engine.refuse_after(0, Status(Code::kCapacity, "full"));
  const HttpAnswer full = post(R"({"prompt":"a"})");
  check_error(full, 429, "rate_limit_error", "queue_full");
  const int retry = std::stoi(full.fields.at("retry-after"));
  CHECK(retry >= 1);
  CHECK(retry <= 60);
  test.engine.refuse_after(0, Status(Code::kInvalidArgument, "too many rows for the KV memory"));
  check_error(post(R"({"prompt":"a"})"), 400, kInvalid, "invalid_value");
  test.engine.refuse_after(0, Status(Code::kCancelled, "draining"));
  check_error(post(R"({"prompt":"a"})"), 503, "unavailable_error", "shutting_down");
  test.engine.refuse_after(0, Status(Code::kDeviceLost, "device"));
  check_error(post(R"({"prompt":"a"})"), 503, "unavailable_error", "engine_error");
  test.engine.refuse_after(1000, Status());
  CHECK(post(R"({"prompt":"a"})").status == 200);
}

TEST_CASE("an engine error answers 500 without its details") {
  TestServer::Options options;
  options.engine.fail_after_tokens = 2;
  TestServer test(options);
  const HttpAnswer answer = test.post("/v1/completions", {{"prompt", "hi"}});
  check_error(answer, 500, "server_error", "engine_error");
  CHECK(answer.body.find("/dev") == std::string::npos);
}

TEST_CASE("framing errors answer once and end the connection") {
  TestServer test;
  const std::string next = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n";
  for (const std::string& bad :
       {std::string("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
                    "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        std::string("GET /health HTTP/1.1\r\n\r\n"), std::string("\x16\x03\x01")}) {
    HttpClient client(test.server->port());
    client.send(bad + next);
    const HttpAnswer answer = client.read_answer();
    check_error(answer, 400, kInvalid, "bad_http_request");
    CHECK(answer.fields.at("connection") == "close");
    CHECK(client.closed_within(5));
  }
}

TEST_CASE("bodies over the limit are refused before they are read") {
  TestServer::Options options;
  options.http.body_bytes_max = 1000;
  TestServer test(options);
  const std::string inside = R"({"prompt":"a","x":")" + std::string(1000 - 21, 'x') + "\"}";
  REQUIRE(inside.size() == 1000);
  CHECK(HttpClient(test.server->port()).post("/v1/completions", inside).status == 200);
  HttpClient client(test.server->port());
  client.send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n");
  check_error(client.read_answer(), 413, kInvalid, "request_too_large");
  HttpClient chunked(test.server->port());
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 11; ++i) chunked.send("64\r\n" + std::string(100, 'x') + "\r\n");
  check_error(chunked.read_answer(), 413, kInvalid, "request_too_large");
}

TEST_CASE("the bodies of all connections share a limit") {
  TestServer::Options options;
  options.http.bodies_bytes_max = 1000;
  TestServer test(options);
  const auto begin = [](size_t bytes) {
    return "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n" +
           std::string(bytes, ' ');
  };
  HttpClient first(test.server->port());
  HttpClient second(test.server->port());
  first.send(begin(600));
  CHECK(test.post("/v1/completions", {{"prompt", "a"}}).status == 200);
  second.send(begin(600));
  check_error(second.read_answer(), 429, "rate_limit_error", "queue_full");
  first.reset();  // Its bytes come back.
  CHECK(soon([&] {
    HttpClient third(test.server->port());
    return third.post("/v1/completions", R"({"prompt":"a"})" + std::string(600, ' ')).status == 200;
  }));
}

TEST_CASE("a request is answered on the way of its body when it asks for it") {
  TestServer test;
  HttpClient client(test.server->port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
      "Content-Length: 14\r\n\r\n");
  CHECK(client.read_head().status == 100);
  client.send(R"({"prompt":"a"})");
  CHECK(client.read_answer().status == 200);
}

TEST_CASE("connections are kept, pipelined, and ended after their share of requests") {
  TestServer::Options options;
  options.http.requests_per_connection_max = 3;
  TestServer test(options);
  HttpClient client(test.server->port());
  const std::string get = "GET /version HTTP/1.1\r\nHost: a\r\n\r\n";
  client.send(post_text("/v1/completions", R"({"prompt":"a"})") + get + get + get);
  const HttpAnswer first = client.read_answer();
  CHECK(first.status == 200);
  CHECK(first.fields.at("connection") == "keep-alive");
  CHECK(client.read_answer().fields.at("connection") == "keep-alive");
  CHECK(client.read_answer().fields.at("connection") == "close");
  CHECK(client.closed_within(5));
  HttpClient once(test.server->port());
  once.send("GET /version HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  CHECK(once.read_answer().fields.at("connection") == "close");
  CHECK(once.closed_within(5));
  HttpClient old(test.server->port());
  old.send("GET /version HTTP/1.0\r\n\r\n");
  CHECK(old.read_answer().status == 200);
  CHECK(old.closed_within(5));
}

TEST_CASE("every answer carries a request id") {
  TestServer test;
  HttpClient client(test.server->port());
  client.send("GET /version HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine-1\r\n\r\n");
  CHECK(client.read_answer().fields.at("x-request-id") == "mine-1");
  const std::string made = client.get("/version").fields.at("x-request-id");
  CHECK(made != client.get("/version").fields.at("x-request-id"));
}

TEST_CASE("slow senders are cut, others are not disturbed") {
  TestServer::Options options;
  options.http.header_seconds_max = 0.3;
  options.http.body_window_seconds = 0.3;
  options.http.body_window_bytes_min = 100;
  TestServer test(options);
  SECTION("a header in single bytes") {
    HttpClient client(test.server->port());
    const auto start = Clock::now();
    const std::string request = "GET /version HTTP/1.1\r\nHost: a\r\nX: " + std::string(1000, 'x');
    size_t at = 0;
    while (at < request.size() && client.send(request.substr(at++, 1)) &&
           seconds_since(start) < 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (seconds_since(start) > 0.5) break;
    }
    check_error(client.read_answer(), 408, kInvalid, "request_timeout");
  }
  SECTION("a silent connection") {
    HttpClient client(test.server->port());
    CHECK(client.closed_within(5));
  }
  SECTION("a slow body") {
    HttpClient client(test.server->port());
    client.send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{");
    check_error(client.read_answer(), 408, kInvalid, "request_timeout");
    CHECK(client.closed_within(5));
  }
  SECTION("a body that keeps the pace for several windows") {
    const std::string body = R"({"prompt":"a"})" + std::string(1000 - 14, ' ');
    // On a busy machine this sender may be slow itself. Then it tries again.
    int status = 0;
    double longest_pause = 0;
    for (int round = 0; round < 50 && status != 200; ++round) {
      HttpClient client(test.server->port());
      client.send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
      longest_pause = 0;
      auto last = Clock::now();
      for (int i = 0; i < 10; ++i) {
        client.send(body.substr(static_cast<size_t>(i) * 100, 100));
        std::this_thread::sleep_for(std::chrono::milliseconds(70));
        longest_pause = std::max(longest_pause, seconds_since(std::exchange(last, Clock::now())));
      }
      status = client.read_answer().status;
      if (longest_pause < options.http.body_window_seconds / 2) break;
    }
    INFO("the longest pause of the sender: " << longest_pause << " s");
    CHECK(status == 200);
  }
}

TEST_CASE("idle connections end") {
  TestServer::Options options;
  options.http.idle_seconds = 0.2;
  TestServer test(options);
  HttpClient client(test.server->port());
  CHECK(client.get("/version").status == 200);
  CHECK(client.closed_within(5));
}

TEST_CASE("connections beyond the limit are told so, and free places are used again") {
  TestServer::Options options;
  SECTION("in total") {
    options.http.connections_max = 2;
  }
  SECTION("from one peer") {
    options.http.connections_per_peer_max = 2;
  }
  TestServer test(options);
  HttpClient first(test.server->port());
  CHECK(first.get("/version").status == 200);
  {
    HttpClient second(test.server->port());
    CHECK(second.get("/version").status == 200);
    HttpClient third(test.server->port());
    const HttpAnswer refused = third.read_answer();
    check_error(refused, 503, "unavailable_error", "too_many_connections");
    CHECK(refused.fields.at("retry-after") == "5");
    CHECK(third.closed_within(5));
  }
  CHECK(soon([&] { return HttpClient(test.server->port()).get("/version").status == 200; }));
}

TEST_CASE("a client that leaves frees its sequences") {
  TestServer test;
  test.engine.hold();
  const std::string body = R"({"prompt":["a","b"],"n":3,"max_tokens":100)";
  for (const char* stream : {"}", ",\"stream\":true}"}) {
    for (const bool reset : {true, false}) {
      const int64_t before = test.engine.submitted();
      HttpClient client(test.server->port());
      client.send(post_text("/v1/completions", body + stream));
      REQUIRE(test.engine.wait_submitted(before + 6));
      // The engine is held: what is not cancelled stays.
      reset ? client.reset() : client.half_close();
      CHECK(test.engine.wait_idle());
    }
  }
  CHECK(test.engine.finished(FinishReason::kCancelled) == 24);
  CHECK(soon([&] { return test.api.admission.held() == 0; }));
}

TEST_CASE("a storm of clients that leave at any moment leaks nothing") {
  TestServer::Options options;
  options.engine.queue_max = 1000;
  options.engine.round_seconds = 0.0005;
  TestServer test(options);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        HttpClient client(test.server->port());
        const std::string request =
            post_text("/v1/completions", R"({"prompt":"abc","n":2,"max_tokens":60,"stream":true})");
        client.send(request.substr(
            0, i % 3 == 0 ? request.size() * static_cast<size_t>(i) / 50 : request.size()));
        std::this_thread::sleep_for(std::chrono::microseconds(137 * ((i * 7 + t) % 20)));
        i % 2 == 0 ? client.reset() : client.half_close();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(test.engine.wait_idle());
  CHECK(soon([&] { return test.api.admission.held() == 0; }));
  CHECK(test.post("/v1/completions", {{"prompt", "a"}}).status == 200);
}

TEST_CASE("the queue is counted when a request arrives") {
  TestServer::Options options;
  options.slots_max = 4;
  TestServer test(options);
  test.engine.hold();
  HttpClient holder(test.server->port());
  holder.send(post_text("/v1/completions", R"({"prompt":"a","n":3})"));
  REQUIRE(test.engine.wait_submitted(3));
  // One place is left: two sequences do not fit, one does.
  check_error(test.post("/v1/completions", {{"prompt", "a"}, {"n", 2}}), 429, "rate_limit_error",
              "queue_full");
  HttpClient last(test.server->port());
  last.send(post_text("/v1/completions", R"({"prompt":"a"})"));
  REQUIRE(test.engine.wait_submitted(4));
  // Full: refused before the body is looked at.
  check_error(HttpClient(test.server->port()).post("/v1/completions", "{"), 429, "rate_limit_error",
              "queue_full");
  CHECK(HttpClient(test.server->port()).get("/health").status == 200);
  test.engine.release();
  CHECK(holder.read_answer().status == 200);
  CHECK(last.read_answer().status == 200);
  CHECK(soon([&] { return test.api.admission.held() == 0; }));
}

TEST_CASE("a request can outlast its time") {
  TestServer::Options options;
  options.request_seconds_max = 1;
  TestServer test(options);
  test.engine.hold();
  const HttpAnswer answer = test.post("/v1/completions", {{"prompt", "a"}});
  check_error(answer, 503, "unavailable_error", "request_timeout");
  CHECK(answer.fields.at("x-should-retry") == "false");
  CHECK(test.engine.wait_idle());
}

TEST_CASE("keys are asked for everywhere but at the door") {
  TestServer::Options options;
  options.access.api_keys = {"secret-1", "secret-2"};
  TestServer test(options);
  HttpClient client(test.server->port());
  CHECK(client.get("/health").status == 200);
  const Router router = make_router(test.api, Access());
  for (const Route& route : router.routes()) {
    if (route.open) continue;
    client.send(route.method + " " + route.path + " HTTP/1.1\r\nHost: a\r\n\r\n");
    const HttpAnswer answer = client.read_answer();
    INFO(route.path);
    check_error(answer, 401, kInvalid, "invalid_api_key");
    CHECK(answer.fields.at("www-authenticate") == "Bearer");
  }
  client.send("GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret-2\r\n\r\n");
  CHECK(client.read_answer().status == 200);
}

TEST_CASE("models, version and health") {
  TestServer test;
  HttpClient client(test.server->port());
  const Json models = Json::parse(client.get("/v1/models").body);
  CHECK(models["object"] == "list");
  REQUIRE(models["data"].size() == 2);
  CHECK(models["data"][1]["id"] == "alias");
  CHECK(models["data"][1]["object"] == "model");
  CHECK(models["data"][1]["max_model_len"] == 128);
  CHECK(Json::parse(client.get("/v1/models/alias").body)["root"] == "fake-model");
  check_error(client.get("/v1/models/other"), 404, kInvalid, "model_not_found");
  CHECK(Json::parse(client.get("/version").body)["version"] == SPILLWAY_VERSION);
  CHECK(client.get("/health").body == R"({"status":"ok"})");
  test.engine.set_healthy(false);
  check_error(client.get("/health"), 503, "unavailable_error", "engine_error");
}

TEST_CASE("load counts the sequences that are being answered") {
  TestServer test;
  const auto load = [&] {
    return Json::parse(HttpClient(test.server->port()).get("/load").body)["server_load"];
  };
  CHECK(load() == 0);
  test.engine.hold();
  HttpClient client(test.server->port());
  client.send(post_text("/v1/completions", R"({"prompt":"hi","n":3,"stream":true})"));
  REQUIRE(client.read_head().status == 200);
  CHECK(load() == 3);
  test.engine.release();
}

TEST_CASE("draining finishes what runs and refuses what is new") {
  TestServer test;
  test.engine.hold();
  HttpClient running(test.server->port());
  running.send(post_text("/v1/completions", R"({"prompt":"a"})"));
  HttpClient idle(test.server->port());
  CHECK(idle.get("/version").status == 200);
  HttpClient busy(test.server->port());
  busy.send("GET /version HTTP/1.1\r\nHost: a\r\n");  // Its request is under way.
  REQUIRE(test.engine.wait_submitted(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  test.api.draining = true;
  test.server->begin_drain();
  CHECK(idle.closed_within(5));
  busy.send("\r\n");
  const HttpAnswer refused = busy.read_answer();
  check_error(refused, 503, "unavailable_error", "shutting_down");
  CHECK(refused.fields.at("connection") == "close");
  // New connections are told so; one that knocks on an open route gets its answer.
  const HttpAnswer late = HttpClient(test.server->port()).get("/version");
  check_error(late, 503, "unavailable_error", "shutting_down");
  CHECK(late.fields.at("connection") == "close");
  CHECK(HttpClient(test.server->port()).get("/health").status == 503);
  CHECK_FALSE(test.server->wait_quiet(0.05));
  test.engine.release();
  CHECK(test.server->wait_quiet(test::kPatience));
  const HttpAnswer answer = running.read_answer();
  CHECK(answer.status == 200);
  CHECK(answer.fields.at("connection") == "close");
}

TEST_CASE("a server answers 503 until its model is there, and by other routes from then on") {
  TestServer test;
  Access access;
  access.api_keys = {"secret"};
  const auto server =
      HttpServer::start("127.0.0.1", 0, HttpLimits(), make_loading_router(access)).value();
  const std::string key = "Host: a\r\nAuthorization: Bearer secret\r\n\r\n";
  HttpClient client(server->port());
  client.send("GET /health HTTP/1.1\r\nHost: a\r\n\r\n");  // Open, as later
  check_error(client.read_answer(), 503, "unavailable_error", "model_loading");
  client.send("GET /v1/models HTTP/1.1\r\n" + key);
  const HttpAnswer loading = client.read_answer();
  check_error(loading, 503, "unavailable_error", "model_loading");
  CHECK(loading.fields.at("retry-after") == "5");
  check_error(HttpClient(server->port()).post("/v1/completions", R"({"prompt":"a"})"), 401,
              kInvalid, "invalid_api_key");
  check_error(client.get("/"), 503, "unavailable_error",
              "model_loading");  // The page is open, too.
  check_error(client.get("/v1/files"), 401, kInvalid, "invalid_api_key");
  for (const char* request : {"GET /v1/files", "POST /v1/batches", "GET /v1/batches/batch_1",
                              "DELETE /v1/files/file_1", "GET /nowhere"}) {
    INFO(request);
    client.send(request + (" HTTP/1.1\r\n" + key));
    check_error(client.read_answer(), 503, "unavailable_error", "model_loading");
  }
  HttpClient upload(server->port());  // Is told before its body is read.
  upload.send("POST /v1/files HTTP/1.1\r\nContent-Length: 1000000\r\n" + key);
  check_error(upload.read_answer(), 503, "unavailable_error", "model_loading");
  server->serve(HttpLimits(), make_router(test.api, access));
  client.send("GET /v1/models HTTP/1.1\r\n" + key);  // On the same connection
  CHECK(client.read_answer().status == 200);
  CHECK(HttpClient(server->port()).get("/health").status == 200);
  check_error(HttpClient(server->port()).get("/"), 401, kInvalid, "invalid_api_key");
  server->stop();
}

TEST_CASE("a port that is taken is named") {
  TestServer test;
  const auto again = HttpServer::start("127.0.0.1", test.server->port(), {}, Router());
  REQUIRE_FALSE(again.ok());
  CHECK(std::string(again.status().message()).find(std::to_string(test.server->port())) !=
        std::string::npos);
  CHECK_FALSE(HttpServer::start("no-such-host.invalid", 0, {}, Router()).ok());
}

}  // namespace
}  // namespace spillway::server_test
