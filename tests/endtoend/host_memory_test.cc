// `spillway serve` stays inside --host-memory, whatever clients send: the largest resident set that
// the kernel saw of the process, after full caches, scores of every candidate, and uploads without
// a key that never end. Over threads, lengths, rules and budgets.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/support/golden.h"
#include "tests/support/http_client.h"
#include "tests/support/places.h"

namespace spillway::host_memory_test {
namespace {

using Json = nlohmann::json;

constexpr size_t kMiB = size_t{1} << 20;

// The program as a process of its own; ends with the scope.
class Serving {
 public:
  explicit Serving(std::vector<std::string> arguments) {
    int pipe[2];
    REQUIRE(::pipe(pipe) == 0);
    process_ = ::fork();
    if (process_ == 0) {
      ::dup2(pipe[1], 1);
      ::close(pipe[0]);
      std::vector<char*> all;
      for (std::string& argument : arguments) all.push_back(argument.data());
      all.push_back(nullptr);
      ::execv(all.front(), all.data());
      ::_exit(127);
    }
    ::close(pipe[1]);
    std::string line;
    for (char c = 0; ::read(pipe[0], &c, 1) == 1 && c != '\n';) line += c;
    output_ = pipe[0];
    INFO(line);
    REQUIRE(line.rfind("Listening on ", 0) == 0);
    port_ = static_cast<uint16_t>(std::stoi(line.substr(line.rfind(':') + 1)));
  }
  ~Serving() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    ::close(output_);
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  uint16_t port() const { return port_; }

  size_t peak_bytes() const {
    std::ifstream status("/proc/" + std::to_string(process_) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("VmHWM:", 0) == 0) return std::stoull(line.substr(6)) << 10;
    }
    return 0;
  }

 private:
  pid_t process_ = -1;
  int output_ = -1;
  uint16_t port_ = 0;
};

// Sends chunks of a body that does not end until the server takes no more of it or has `bytes`.
std::unique_ptr<HttpClient> upload(uint16_t port, size_t bytes) {
  static const std::string piece = "40000\r\n" + std::string(256 << 10, ' ') + "\r\n";
  auto client = std::make_unique<HttpClient>(port);
  client->send(
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n");
  for (size_t sent = 0; sent < bytes; sent += 256 << 10) {
    if (!client->send(piece)) break;
  }
  return client;
}

TEST_CASE("serve stays inside its host memory, whatever is uploaded and asked for", "[slow]") {
  constexpr uint64_t kSeed = 20261123;
  std::mt19937_64 random(kSeed);
  const test::TemporaryCache cache;
  const std::string key = "sesame";
  for (const int threads : {1, 2, 48}) {
    const size_t budget = (300 + random() % 120) * kMiB;
    const char* const rules[] = {"full", "h2o", "window"};
    const std::string rule = rules[random() % 3];
    INFO("seed " << kSeed << ", " << threads << " threads, " << budget / kMiB << " MiB, " << rule);
    std::vector<std::string> arguments = {test::program(),
                                          "serve",
                                          test::source_directory() + "/configs/demo",
                                          "--device",
                                          "cpu",
                                          "--port",
                                          "0",
                                          "--api-key",
                                          key,
                                          "--threads",
                                          std::to_string(threads),
                                          "--host-memory",
                                          std::to_string(budget / kMiB) + "MiB"};
    if (rule == "h2o")
      arguments.insert(arguments.end(),
                       {"--kv-rule", "h2o", "--kv-heavy", "0.1", "--kv-recent", "0.1"});
    if (rule == "window")
      arguments.insert(arguments.end(), {"--kv-rule", "window", "--kv-recent", "200"});
    Serving serving(arguments);
    const std::string fields = "Authorization: Bearer " + key + "\r\n";

    // Long prompts at once: the cache and every thread's scratch.
    std::vector<std::vector<int32_t>> prompts(16);
    for (auto& prompt : prompts) {
      for (uint64_t left = 300 + random() % 200; left > 0; --left) {
        prompt.push_back(static_cast<int32_t>(3 + random() % 4000));
      }
    }
    std::vector<std::unique_ptr<HttpClient>> clients;
    clients.push_back(std::make_unique<HttpClient>(serving.port()));
    const Json body = {{"prompt", prompts},
                       {"max_tokens", 2},
                       {"ignore_eos", true},
                       {"echo", true},
                       {"logprobs", 5}};
    clients.back()->send(post_text("/v1/completions", body.dump(), fields));
    const HttpAnswer answer = clients.back()->read_answer();
    INFO(answer.body.substr(0, 300));
    CHECK(answer.status == 200);

    // What no key is needed for, as large and as often as the server takes it; then more of it.
    for (int i = 0; i < 10; ++i) clients.push_back(upload(serving.port(), 31 * kMiB));
    for (int i = 0; i < 12; ++i) clients.push_back(upload(serving.port(), 7 * kMiB + 512 * 1024));
    // And the largest body that is parsed, while these are there.
    const std::string values(2 * kMiB, '1');
    Json large = {{"prompt", values}, {"max_tokens", 1}};
    const HttpAnswer parsed =
        HttpClient(serving.port()).post("/v1/completions", large.dump(), fields);
    CHECK((parsed.status == 400 || parsed.status == 429));

    CHECK(serving.peak_bytes() <= budget);
    CHECK(serving.peak_bytes() > 40 * kMiB);  // Weights, cache and answers were there.
    CHECK(HttpClient(serving.port()).get("/health").status == 200);
  }
}

}  // namespace
}  // namespace spillway::host_memory_test
