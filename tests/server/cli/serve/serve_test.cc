// run_serve: from the first line to the last signal.
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <future>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "server/cli/flags/command_line.h"
#include "server/cli/serve/serve.h"
#include "server/log.h"
#include "tests/server/api/api_support.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/patience.h"
#include "tests/support/temp_directory.h"

namespace spillway::serve_test {
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
      return run_serve(flags, HttpListener::bind(flags.host, flags.port).value(), model,
                       [&](std::string_view text) { listening.set_value(std::string(text)); });
    });
    const std::string text = url.get();
    REQUIRE(text.starts_with("http://127.0.0.1:"));
    port = static_cast<uint16_t>(std::stoi(text.substr(text.rfind(':') + 1)));
  }

  bool ended_within(double seconds = test::kPatience) {
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
  REQUIRE(served.ended_within());
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
    REQUIRE(served.ended_within());
  }
  CHECK(drawn[0] == drawn[1]);
  for (const size_t i : {0, 1, 2, 3, 5}) CHECK(drawn[0][i] != drawn[2][i]);
}

TEST_CASE("serve says at its start what it serves, to whom and how much") {
  FakeScheduler engine;
  ApiContext context = fake_context(engine.shape(), nullptr);
  ServeFlags flags;
  CHECK(start_line(flags, context, 7) ==
        "Serving fake-model, alias (128 positions); asks for no API key; at most 7 sequences "
        "running and waiting, 8.00 MiB a request, 1024 connections a client");
  flags.api_keys = {"secret-1", "secret-2"};
  const std::string line = start_line(flags, context, 7);
  CHECK(line.find("asks for one of 2 API keys") != std::string::npos);
  CHECK(line.find("secret") == std::string::npos);
}

TEST_CASE("who may go before others is the operator's to say, and open where there is one client") {
  struct Row {
    std::string priority;
    std::vector<std::string> keys;
    int status;
  };
  for (const Row& row :
       {Row{"auto", {}, 200}, Row{"auto", {"k"}, 200}, Row{"auto", {"k", "l"}, 403},
        Row{"on", {"k", "l"}, 200}, Row{"off", {"k"}, 403}, Row{"off", {}, 403}}) {
    ServeFlags flags;
    flags.priority = row.priority;
    flags.api_keys = row.keys;
    Served served(flags);
    HttpClient client(served.port);
    const std::string key = "Authorization: Bearer k\r\n";
    const auto ask = [&](int priority) {
      return client.post("/v1/completions",
                         R"({"prompt":"a","priority":)" + std::to_string(priority) + "}", key);
    };
    const HttpAnswer first = ask(-1);
    CHECK(first.status == row.status);
    if (row.status == 403) {
      const Json error = Json::parse(first.body)["error"];
      CHECK(error["code"] == "priority_not_allowed");
      CHECK(error["param"] == "priority");
    }
    CHECK(ask(0).status == 200);
    CHECK(ask(1).status == 200);  // Letting others go first harms nobody.
    std::raise(SIGTERM);
    REQUIRE(served.ended_within());
  }
}

TEST_CASE("a signal lets running answers finish") {
  Served served;
  served.engine.hold();
  HttpClient running(served.port);
  running.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":5})"));
  HttpClient streaming(served.port);
  streaming.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":5,"stream":true})"));
  REQUIRE(served.engine.wait_submitted(2));
  std::raise(SIGINT);
  CHECK_FALSE(served.ended_within(0.2));
  CHECK(HttpClient(served.port).get("/health").status == 503);  // Nobody new
  served.engine.release();
  CHECK(running.read_answer().status == 200);
  const HttpAnswer streamed = streaming.read_answer();
  CHECK(streamed.complete);
  CHECK(streamed.chunks.back() == "data: [DONE]\n\n");
  REQUIRE(served.ended_within());
  CHECK(served.result.get().ok());
}

TEST_CASE("a terminal that closes is a signal to stop, unless nohup started the server") {
  SECTION("a terminal") {
    Served served;
    served.engine.hold();
    HttpClient running(served.port);
    running.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":5})"));
    REQUIRE(served.engine.wait_submitted(1));
    std::raise(SIGHUP);
    CHECK_FALSE(served.ended_within(0.2));
    served.engine.release();
    CHECK(running.read_answer().status == 200);
    REQUIRE(served.ended_within());
    CHECK(served.result.get().ok());
  }
  SECTION("nohup") {
    const auto before = std::signal(SIGHUP, SIG_IGN);
    Served served;
    std::raise(SIGHUP);
    CHECK_FALSE(served.ended_within(0.2));
    CHECK(HttpClient(served.port).get("/health").status == 200);
    std::raise(SIGTERM);
    REQUIRE(served.ended_within());
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
  REQUIRE(served.engine.wait_submitted(1));
  std::raise(SIGTERM);
  CHECK(running.read_answer().status == 503);
  REQUIRE(served.ended_within());
  CHECK(served.result.get().ok());
}

TEST_CASE("a second signal does not wait") {
  ServeFlags flags;
  flags.drain_seconds = 600;
  Served served(flags);
  served.engine.hold();
  HttpClient running(served.port);
  running.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":5})"));
  REQUIRE(served.engine.wait_submitted(1));
  std::raise(SIGTERM);
  CHECK_FALSE(served.ended_within(0.3));
  std::raise(SIGTERM);
  REQUIRE(served.ended_within());
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
  REQUIRE(served.engine.wait_submitted(1));
  CHECK_FALSE(served.ended_within(1.2));  // Looked at once, and found well
  served.engine.set_healthy(false);
  CHECK(running.read_answer().status == 503);
  REQUIRE(served.ended_within());
  CHECK(served.result.get().code() == Code::kDeviceLost);
}

TEST_CASE("a failed engine does not hold back a signal") {
  ServeFlags flags;
  flags.drain_seconds = 600;
  Served served(flags);
  served.engine.hold();
  HttpClient running(served.port);
  running.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":5})"));
  REQUIRE(served.engine.wait_submitted(1));
  served.engine.set_healthy(false);
  CHECK_FALSE(served.ended_within(1.5));  // It drains.
  std::raise(SIGTERM);
  REQUIRE(served.ended_within());
  CHECK(served.result.get().code() == Code::kDeviceLost);
}

// `spillway serve m ARGUMENTS`, up to where it would open the model, which fails with `end`.
struct Attempt {
  int exit = 0;
  bool reached_the_model = false;
};

Attempt attempt(std::vector<std::string> arguments,
                const Status& end = {Code::kIoError, "no model here"},
                std::span<const std::string> warnings = {}) {
  Attempt made;
  std::vector<Command> commands;
  commands.push_back(serve_command(
      [&](const std::string&, const EngineFlags&, const OpenFor&) -> Result<ServedModel> {
        made.reached_the_model = true;
        return end;
      }));
  arguments.insert(arguments.begin(), {"spillway", "serve", "m"});
  std::vector<const char*> words;
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  made.exit = run_command_line(
      commands, static_cast<int>(words.size()), words.data(),
      [](const char*) -> const char* { return nullptr; }, warnings);
  return made;
}

TEST_CASE("what is said of the environment has the format of the log") {
  const std::vector<std::string> warnings = {"SPILLWAY_PROT sets nothing"};
  const auto first_line = [&](const std::vector<std::string>& arguments) {
    test::Captured log;
    attempt(arguments, {Code::kIoError, "no model here"}, warnings);
    const std::string all = log.end();
    set_log(LogFormat::kText, LogLevel::kInfo);
    return all.substr(0, all.find('\n'));
  };
  const auto line = nlohmann::json::parse(first_line({"--port", "0", "--log-format", "json"}));
  CHECK(line["message"] == warnings[0]);
  CHECK(line["level"] == "warning");
  CHECK_THAT(first_line({"--port", "0"}), Catch::EndsWith("[warning] " + warnings[0]));
  const auto error = first_line({"--port", "0", "--log-format", "json", "--log-level", "error"});
  CHECK_THAT(error, !Catch::Contains(warnings[0]));  // Less than that is not wanted.
  // Also where the command does not run.
  CHECK_THAT(first_line({"--port", "0", "--print-config"}),
             Catch::EndsWith("[warning] " + warnings[0]));
  CHECK_THAT(first_line({"--prot", "0"}), Catch::EndsWith("[warning] " + warnings[0]));
  CHECK_THAT(first_line({"--port", "none"}), Catch::EndsWith("[warning] " + warnings[0]));
}

TEST_CASE("serve ends with 2 where the model is damaged, with 1 where the disk fails") {
  CHECK(attempt({"--port", "0"}, corruption("cut off")).exit == kExitUsage);
  CHECK(attempt({"--port", "0"}, Status(Code::kIoError, "disk")).exit == kExitFailure);
}

TEST_CASE("what serve can refuse without its model it refuses before the model is loaded") {
  Served served;
  const Attempt taken = attempt({"--port", std::to_string(served.port)});
  CHECK(taken.exit == kExitFailure);
  CHECK_FALSE(taken.reached_the_model);
  // 192.0.2.1 is of a network that exists in documents only.
  for (const char* host : {"192.0.2.1", "no-such-host.invalid"}) {
    const Attempt wrong = attempt({"--port", "0", "--host", host});
    CHECK(wrong.exit == kExitUsage);
    CHECK_FALSE(wrong.reached_the_model);
  }
  CHECK_FALSE(attempt({"--port", "0", "--served-model-name", "a,"}).reached_the_model);
  for (const char* origin : {"example.org", "https://example.org/", "://x", ""}) {
    CHECK_FALSE(attempt({"--port", "0", "--allowed-origins", origin}).reached_the_model);
  }
  CHECK(attempt({"--port", "0", "--allowed-origins", "https://example.org:80"}).reached_the_model);
  std::raise(SIGTERM);
  REQUIRE(served.ended_within());
}

TEST_CASE(
    "a server whose default folder of batches is another's says so where they are asked for") {
  const TempDirectory folder;
  ServeFlags flags;
  flags.batch_dir = folder.path() + "/batches";
  const Served first(flags), second(flags);
  CHECK(HttpClient(first.port).get("/v1/batches").status == 200);
  const HttpAnswer refused = HttpClient(second.port).get("/v1/batches");
  CHECK(refused.status == 503);
  CHECK(Json::parse(refused.body)["error"]["code"] == "batches_unavailable");
  CHECK(HttpClient(second.port).get("/v1/models").status == 200);
  const Served without;  // --batch-dir off
  CHECK(HttpClient(without.port).get("/v1/batches").status == 404);
  std::raise(SIGTERM);
}

TEST_CASE("without keys serve answers to its own names and pages only") {
  const auto ask = [](const Served& served, const std::string& fields,
                      const std::string& path = "/v1/models") {
    HttpClient client(served.port);
    client.send("GET " + path + " HTTP/1.1\r\n" + fields + "\r\n");
    return client.read_answer();
  };
  ServeFlags flags;
  flags.allowed_hosts = {"gpu.example.org"};
  SECTION("without keys") {
    Served served(flags);
    for (const char* host :
         {"127.0.0.1:8000", "localhost", "gpu.example.org", "GPU.example.org:80"}) {
      INFO(host);
      CHECK(ask(served, "Host: " + std::string(host) + "\r\n").status == 200);
    }
    const HttpAnswer rebound =
        ask(served, "Host: evil.example:8000\r\nOrigin: http://evil.example:8000\r\n");
    CHECK(rebound.status == 403);
    CHECK_FALSE(rebound.fields.contains("access-control-allow-origin"));
    const Json error = Json::parse(rebound.body)["error"];
    CHECK(error["code"] == "forbidden_host");
    CHECK_THAT(error["message"].get<std::string>(), Catch::Contains("--allowed-host NAME"));
    CHECK(ask(served, "Host: evil.example\r\n", "/health").status == 200);
    CHECK(ask(served, "Host: gpu.example.org\r\nOrigin: https://gpu.example.org\r\n").status ==
          200);
    CHECK(ask(served, "Host: gpu.example.org\r\nOrigin: https://evil.example\r\n").status == 403);
    std::raise(SIGTERM);
    REQUIRE(served.ended_within(10));
  }
  SECTION("with keys") {
    flags.api_keys = {"k"};
    Served served(flags);
    CHECK(ask(served, "Host: evil.example\r\nAuthorization: Bearer k\r\n").status == 200);
    CHECK(ask(served, "Host: evil.example\r\n").status == 401);
    std::raise(SIGTERM);
    REQUIRE(served.ended_within(10));
  }
}

TEST_CASE("an address that cannot be listened on is refused for its own reason") {
  const auto taken = HttpServer::start("127.0.0.1", 0, {}, Router()).value();
  const Status port = HttpListener::bind("127.0.0.1", taken->port()).status();
  CHECK_THAT(std::string(port.message()), Catch::Contains("another --port"));
  const Status host = HttpListener::bind("192.0.2.1", 8000).status();
  CHECK_THAT(std::string(host.message()), Catch::Contains("--host"));
  CHECK_THAT(std::string(host.message()), !Catch::Contains("--port"));
  CHECK(HttpListener::bind("127.0.0.1", 0).value().loopback());
  CHECK_FALSE(HttpListener::bind("0.0.0.0", 0).value().loopback());
}

TEST_CASE("a port that was taken while the model was loaded is an error of serve") {
  HttpListener listener = HttpListener::bind("127.0.0.1", 0).value();
  HttpListener second = HttpListener::bind("127.0.0.1", listener.port()).value();
  const auto first = HttpServer::start(std::move(second), {}, Router()).value();
  Tokenizer tokenizer = byte_tokenizer();
  FakeScheduler engine;
  ServedModel model;
  model.context = fake_context(engine.shape(), &tokenizer);
  model.scheduler = &engine;
  const Status status =
      run_serve(ServeFlags(), std::move(listener), model, [](std::string_view) {});
  CHECK(status.code() == Code::kIoError);
}

}  // namespace
}  // namespace spillway::serve_test
