// What the program does as a process, before it has a model.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "tests/support/golden.h"
#include "tests/support/places.h"

namespace spillway::process_test {
namespace {

// What the program ends with when nobody reads its standard error.
int end_of(const char* command) {
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  close(pipe_ends[0]);
  const std::string program = test::program();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGPIPE, SIG_DFL);
    dup2(pipe_ends[1], STDERR_FILENO);
    execl(program.c_str(), "spillway", command, "no-such-model", "--no-such-flag", nullptr);
    _exit(99);
  }
  close(pipe_ends[1]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

TEST_CASE("a command outlives the reader of its messages") {
  for (const char* command : {"serve", "batch", "generate"}) {
    INFO(command);
    const int status = end_of(command);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 2);
  }
}

// `spillway serve` that waits for somebody who seems to pack the same model, and so is loading for
// as long as a test likes.
class LoadingServer {
 public:
  explicit LoadingServer(bool nohup) {
    const std::string model = test::read_golden("pre_ln_relu").checkpoints.front();
    // What it will wait for is beside the packed file, whose name it knows.
    REQUIRE(test::exit_of(test::program() + " generate " + model +
                          " --device cpu --prompt-tokens 5 --max-tokens 1 > /dev/null 2>&1") == 0);
    for (const auto& entry : std::filesystem::directory_iterator(cache_.path())) {
      if (entry.path().extension() != ".lock") continue;
      lock_ = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    }
    REQUIRE(lock_ >= 0);
    REQUIRE(::flock(lock_, LOCK_EX | LOCK_NB) == 0);
    const std::string program = test::program();
    child_ = ::fork();
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // A test that fails leaves no server behind.
      if (nohup) std::signal(SIGHUP, SIG_IGN);
      const int log = ::open(log_path().c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
      ::dup2(log, STDOUT_FILENO);
      ::dup2(log, STDERR_FILENO);
      ::execl(program.c_str(), "spillway", "serve", model.c_str(), "--device", "cpu", "--port", "0",
              nullptr);
      ::_exit(127);
    }
    for (int i = 0; i < 6000 && !said("waiting for it"); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    REQUIRE(said("waiting for it"));
  }
  ~LoadingServer() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    ::close(lock_);
  }

  void signal(int number) const { ::kill(child_, number); }
  bool runs() { return ::waitpid(child_, nullptr, WNOHANG) == 0; }
  int wait() {
    int status = 0;
    REQUIRE(::waitpid(child_, &status, 0) == child_);
    child_ = -1;
    return status;
  }
  bool said(const std::string& text) const {
    std::ifstream in(log_path());
    const std::string log{std::istreambuf_iterator<char>(in), {}};
    return log.find(text) != std::string::npos;
  }

 private:
  std::string log_path() const { return cache_.path() + "/log"; }

  test::TemporaryCache cache_;
  int lock_ = -1;
  pid_t child_ = -1;
};

TEST_CASE("a server that is asked to stop while it loads says so and ends with 130") {
  for (const int number : {SIGHUP, SIGTERM, SIGINT}) {
    INFO(number);
    LoadingServer server(false);
    server.signal(number);
    const int status = server.wait();
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 130);
    CHECK(server.said("stopped while the model was loaded"));
  }
}

TEST_CASE("a terminal that closes does not end a server that nohup started while it loads") {
  LoadingServer server(true);
  server.signal(SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(server.runs());
}

// What the program prints on standard output.
std::string output_of(const std::string& arguments) {
  std::FILE* pipe = ::popen((test::program() + " " + arguments + " 2> /dev/null").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string out;
  char bytes[4096];
  while (std::fgets(bytes, sizeof(bytes), pipe) != nullptr) out += bytes;
  ::pclose(pipe);
  return out;
}

TEST_CASE("completions have every command and every flag of the program") {
  const std::string bash = output_of("completions bash");
  const std::string zsh = output_of("completions zsh");
  const std::string fish = output_of("completions fish");
  const std::string help = output_of("help");
  std::istringstream lines(help.substr(help.find("Commands:\n") + 10));
  int commands = 0, flags = 0;
  for (std::string line; std::getline(lines, line) && !line.empty();) {
    std::istringstream words(line);
    std::string command;
    if (!line.starts_with("  ") || line.starts_with("   ") || !(words >> command)) continue;
    ++commands;
    INFO(command);
    for (const std::string* script : {&bash, &zsh, &fish}) {
      CHECK(script->find(command) != std::string::npos);
    }
    std::istringstream text(output_of("help " + command));
    for (std::string entry; std::getline(text, entry);) {
      if (!entry.starts_with("  --")) continue;
      const std::string flag = entry.substr(4, entry.find(' ', 4) - 4);
      ++flags;
      INFO(flag);
      CHECK(bash.find("--" + flag) != std::string::npos);
      CHECK(zsh.find("--" + flag) != std::string::npos);
      CHECK(fish.find("-l " + flag + " ") != std::string::npos);
    }
  }
  CHECK(commands >= 13);
  CHECK(flags > 200);
}

}  // namespace
}  // namespace spillway::process_test
