// Batches in child processes that die: by kill -9 at random instants, and by their own crash.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <random>

#include "tests/server/batch_fixture.h"
#include "tests/support/seed.h"

namespace spillway::batch_test {
namespace {

// Starts the batch in a child whose chatter goes nowhere.
pid_t start_child(Place& place, std::chrono::microseconds sweep) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  const int nowhere = ::open("/dev/null", O_WRONLY);
  ::dup2(nowhere, STDERR_FILENO);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) ::signal(signal, SIG_DFL);
  Status status;
  {
    MadeUpScheduler scheduler(8, sweep);
    status = place.run(&scheduler);
  }
  ::_exit(exit_status_of(status));
}

int wait_for(pid_t child) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

TEST_CASE("killed twenty times, every line is there once and as if nothing had happened") {
  const unsigned seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  Place place;
  place.write_input(mixed_input(400));
  REQUIRE(place.run().ok());
  const auto whole = place.rows();
  std::filesystem::remove(place.flags.output);

  place.flags.resume = true;
  int kills = 0;
  int64_t done = 0;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = start_child(place, std::chrono::milliseconds(1));
    ::usleep(random() % 40'000);
    ::kill(child, SIGKILL);
    kills += WIFSIGNALED(wait_for(child)) ? 1 : 0;
    if (!std::filesystem::exists(place.journal())) continue;
    const auto counts = Journal::inspect(place.journal());
    REQUIRE(counts.ok());
    CHECK(counts->finished >= done);
    done = counts->finished;
  }
  CHECK(kills > 0);
  REQUIRE(place.run().ok());
  CHECK(place.rows() == whole);
}

TEST_CASE("a row that crashes the program gets an error; its companions get their results") {
  Place place;
  const std::string poison = "{\"prompt\":[" + std::to_string(MadeUpScheduler::kPoison) + "]}\n";
  place.write_input(mixed_input(9) + poison + mixed_input(9) + poison);
  place.flags.resume = true;
  int crashes = 0;
  int status = 0;
  do {
    REQUIRE(crashes <= 6);
    status = wait_for(start_child(place, std::chrono::microseconds(100)));
    crashes += WIFSIGNALED(status) ? 1 : 0;
  } while (WIFSIGNALED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  CHECK(crashes >= 2);
  const auto rows = place.rows();
  REQUIRE(rows.size() == 20);
  for (const size_t index : {9, 19}) {
    CHECK(rows[index]["response"]["status_code"] == 500);
    CHECK(rows[index]["error"]["code"] == "row_crashed");
  }
  for (size_t i = 0; i < 9; ++i) CHECK(rows[i]["response"]["status_code"] == 200);
  CHECK_FALSE(std::filesystem::exists(place.journal()));
  CHECK_FALSE(std::filesystem::exists(place.journal() + ".crashed"));
}

}  // namespace
}  // namespace spillway::batch_test
