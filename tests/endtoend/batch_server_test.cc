// A batch at a server, as two processes of the program: over a Unix socket, with the demo model.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/golden.h"
#include "tests/support/patience.h"
#include "tests/support/places.h"
#include "tests/support/temp_directory.h"

namespace spillway::batch_server_test {
namespace {

using Json = nlohmann::json;

std::string read(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// `spillway serve` of the demo model on a Unix socket.
class SocketServer {
 public:
  SocketServer() {
    const std::string program = test::program();
    const std::string model = test::source_directory() + "/configs/demo";
    child_ = ::fork();
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // A test that fails leaves no server behind.
      const int log = ::open((folder_ / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
      ::dup2(log, STDOUT_FILENO);
      ::dup2(log, STDERR_FILENO);
      ::execl(program.c_str(), "spillway", "serve", model.c_str(), "--device", "cpu", "--socket",
              socket().c_str(), nullptr);
      ::_exit(127);
    }
    for (int i = 0; i < 100 * test::kPatience; ++i) {
      if (read(folder_ / "log").find("Listening on unix:") != std::string::npos) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL(read(folder_ / "log"));
  }
  ~SocketServer() {
    if (child_ < 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }

  std::string socket() const { return folder_ / "spillway.sock"; }
  std::string log() const { return read(folder_ / "log"); }
  int stop() {
    ::kill(child_, SIGTERM);
    int status = 0;
    REQUIRE(::waitpid(child_, &status, 0) == child_);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  test::TemporaryCache cache_;  // With the server's files and batches
  TempDirectory folder_;
  pid_t child_ = -1;
};

std::vector<Json> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<Json> lines;
  for (std::string text; std::getline(in, text);) lines.push_back(Json::parse(text));
  return lines;
}

TEST_CASE("a batch at a server has the answers of one on this machine") {
  SocketServer server;
  struct stat found {};
  REQUIRE(::lstat(server.socket().c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0600);
  const TempDirectory folder;
  std::ofstream input(folder / "in.jsonl");
  for (int i = 0; i < 12; ++i) {
    const Json body = {{"prompt", "Emma " + std::to_string(i)},
                       {"max_tokens", i == 5 ? -1 : 8},
                       {"temperature", 0}};
    input << Json{{"custom_id", "l" + std::to_string(i)},
                  {"method", "POST"},
                  {"url", "/v1/completions"},
                  {"body", body}}
          << "\n";
  }
  input.close();
  const std::string files = " --input " + folder / "in.jsonl" + " --output ";
  const std::string quiet = " --progress none 2>> " + folder / "log";
  const std::string at_server = test::program() + " batch --server unix:" + server.socket();
  INFO(server.log());
  REQUIRE(test::exit_of(at_server + files + folder / "there.jsonl" + quiet) == 0);
  REQUIRE(test::exit_of(test::program() + " run-batch " + test::source_directory() +
                        "/configs/demo --device cpu" + files + folder / "here.jsonl" + quiet) == 0);
  const std::vector<Json> there = lines_of(folder / "there.jsonl");
  const std::vector<Json> here = lines_of(folder / "here.jsonl");
  REQUIRE(there.size() == 12);
  REQUIRE(here.size() == 12);
  for (size_t i = 0; i < 12; ++i) {
    INFO(there[i].dump());
    CHECK(there[i]["custom_id"] == here[i]["custom_id"]);
    CHECK(there[i]["response"]["status_code"] == here[i]["response"]["status_code"]);
    CHECK(there[i]["error"].is_null() == here[i]["error"].is_null());
    if (i == 5) continue;
    CHECK(there[i]["response"]["body"]["choices"] == here[i]["response"]["body"]["choices"]);
  }
  CHECK(server.stop() == 0);
  CHECK(::lstat(server.socket().c_str(), &found) != 0);
  CHECK(test::exit_of(at_server + files + folder / "none.jsonl" + quiet) == 1);
}

}  // namespace
}  // namespace spillway::batch_server_test
