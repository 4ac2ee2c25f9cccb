// run_serve: from the first line to the last signal.
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <future>
#include <set>
#include <thread>

#include "server/commands/serve.h"
#include "tests/server/api_support.h"

namespace spillway {
namespace {

// run_serve on a thread of its own.
struct Served {
  explicit Served(ServeFlags flags = {}) {
    flags.port = 0;
    std::promise<std::string> listening;
    std::future<std::string> url = listening.get_future();
    model.context = fake_context(engine.shape(), &tokenizer);
    model.scheduler = &engine;
    result = std::async(std::launch::async, [this, flags, &listening] {
      return run_serve(flags, model,
                       [&](std::string_view text) { listening.set_value(std::string(text)); });
    });
    const std::string text = url.get();
    REQUIRE(text.starts_with("http://127.0.0.1:"));
    port = static_cast<uint16_t>(std::stoi(text.substr(text.rfind(':') + 1)));
  }

  bool ended_within(double seconds) {
    return result.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready;
  }

  Tokenizer tokenizer = byte_tokenizer();
  FakeScheduler engine;
  ServedModel model;
  std::future<Status> result;
  uint16_t port = 0;
};

TEST_CASE("serve answers until it is asked to stop") {
  ServeFlags flags;
  flags.served_model_names = {"mine"};
  Served served(flags);
  HttpClient client(served.port);
  CHECK(Json::parse(client.get("/v1/models").body)["data"][0]["id"] == "mine");
  CHECK(client.post("/v1/completions", R"({"prompt":"a"})").status == 200);
  std::raise(SIGTERM);
  REQUIRE(served.ended_within(10));
  CHECK(served.result.get().ok());
}

TEST_CASE("draws of requests without a seed follow from the server's") {
  std::vector<std::vector<uint64_t>> drawn;
  for (const uint64_t seed : {7, 7, 8}) {
    ServeFlags flags;
    flags.seed = seed;
    Served served(flags);
    HttpClient client(served.port);
    for (const char* body : {R"({"prompt":"a","n":2,"max_tokens":1})", R"({"prompt":["a","b"]})",
                             R"({"prompt":"a","seed":5})", R"({"prompt":"a","seed":-1})"}) {
      CHECK(client.post("/v1/completions", body).status == 200);
    }
    std::vector<uint64_t>& seeds = drawn.emplace_back();
    for (const Request& request : served.engine.seen()) seeds.push_back(request.sampling.seed);
    REQUIRE(seeds.size() == 6);
    CHECK(seeds[4] == 5);
    CHECK(std::set<uint64_t>(seeds.begin(), seeds.end()).size() == 6);
    std::raise(SIGTERM);
    REQUIRE(served.ended_within(10));
  }
  CHECK(drawn[0] == drawn[1]);
  for (const size_t i : {0, 1, 2, 3, 5}) CHECK(drawn[0][i] != drawn[2][i]);
}

TEST_CASE("a signal lets running answers finish") {
  Served served;
  served.engine.hold();
  HttpClient running(served.port);
  running.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":5})"));
  HttpClient streaming(served.port);
  streaming.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":5,"stream":true})"));
  REQUIRE(served.engine.wait_submitted(2, 10));
  std::raise(SIGINT);
  CHECK_FALSE(served.ended_within(0.2));
  CHECK(HttpClient(served.port).get("/health").status == 0);  // Nobody new
  served.engine.release();
  CHECK(running.read_answer().status == 200);
  const HttpAnswer streamed = streaming.read_answer();
  CHECK(streamed.complete);
  CHECK(streamed.chunks.back() == "data: [DONE]\n\n");
  REQUIRE(served.ended_within(10));
  CHECK(served.result.get().ok());
}

TEST_CASE("a terminal that closes is a signal to stop, unless nohup started the server") {
  SECTION("a terminal") {
    Served served;
    served.engine.hold();
    HttpClient running(served.port);
    running.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":5})"));
    REQUIRE(served.engine.wait_submitted(1, 10));
    std::raise(SIGHUP);
    CHECK_FALSE(served.ended_within(0.2));
    served.engine.release();
    CHECK(running.read_answer().status == 200);
    REQUIRE(served.ended_within(10));
    CHECK(served.result.get().ok());
  }
  SECTION("nohup") {
    const auto before = std::signal(SIGHUP, SIG_IGN);
    Served served;
    std::raise(SIGHUP);
    CHECK_FALSE(served.ended_within(0.2));
    CHECK(HttpClient(served.port).get("/health").status == 200);
    std::raise(SIGTERM);
    REQUIRE(served.ended_within(10));
    std::signal(SIGHUP, before);
  }
}

TEST_CASE("what does not finish in time is cancelled with an error") {
  ServeFlags flags;
  flags.drain_seconds = 0.2;
  Served served(flags);
  served.engine.hold();
  HttpClient running(served.port);
  running.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":5})"));
  REQUIRE(served.engine.wait_submitted(1, 10));
  std::raise(SIGTERM);
  CHECK(running.read_answer().status == 503);
  REQUIRE(served.ended_within(10));
  CHECK(served.result.get().ok());
}

TEST_CASE("a second signal does not wait") {
  ServeFlags flags;
  flags.drain_seconds = 600;
  Served served(flags);
  served.engine.hold();
  HttpClient running(served.port);
  running.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":5})"));
  REQUIRE(served.engine.wait_submitted(1, 10));
  std::raise(SIGTERM);
  CHECK_FALSE(served.ended_within(0.3));
  std::raise(SIGTERM);
  REQUIRE(served.ended_within(10));
  CHECK(served.result.get().ok());
  CHECK(running.read_answer().status == 0);
}

TEST_CASE("an engine that only a restart cures ends serve with an error") {
  ServeFlags flags;
  flags.drain_seconds = 0.2;
  Served served(flags);
  served.engine.hold();
  HttpClient running(served.port);
  running.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":5})"));
  REQUIRE(served.engine.wait_submitted(1, 10));
  CHECK_FALSE(served.ended_within(1.2));  // Looked at once, and found well
  served.engine.set_healthy(false);
  CHECK(running.read_answer().status == 503);
  REQUIRE(served.ended_within(10));
  CHECK(served.result.get().code() == Code::kDeviceLost);
}

TEST_CASE("a failed engine does not hold back a signal") {
  ServeFlags flags;
  flags.drain_seconds = 600;
  Served served(flags);
  served.engine.hold();
  HttpClient running(served.port);
  running.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":5})"));
  REQUIRE(served.engine.wait_submitted(1, 10));
  served.engine.set_healthy(false);
  CHECK_FALSE(served.ended_within(1.5));  // It drains.
  std::raise(SIGTERM);
  REQUIRE(served.ended_within(10));
  CHECK(served.result.get().code() == Code::kDeviceLost);
}

TEST_CASE("serve says when it cannot listen") {
  Served served;
  ServeFlags flags;
  flags.port = served.port;
  const Status status = run_serve(flags, served.model, [](std::string_view) {});
  CHECK_FALSE(status.ok());
  std::raise(SIGTERM);
  REQUIRE(served.ended_within(10));
}

}  // namespace
}  // namespace spillway
