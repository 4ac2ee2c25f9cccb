// What the program does as a process, before any model.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>

namespace spillway {
namespace {

// What the program ends with when nobody reads its standard error.
int end_of(const char* command) {
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  close(pipe_ends[0]);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGPIPE, SIG_DFL);
    dup2(pipe_ends[1], STDERR_FILENO);
    execl(SPILLWAY_BINARY, "spillway", command, "no-such-model", "--no-such-flag", nullptr);
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

}  // namespace
}  // namespace spillway
