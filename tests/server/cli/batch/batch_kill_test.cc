// Batches in child processes that die: by kill -9 at random instants, and by their own crash.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "server/batches/crash_mark.h"
#include "server/cli/common/interrupt.h"
#include "tests/server/cli/batch/batch_fixture.h"
#include "tests/support/seed.h"

namespace spillway::batch_test::kill_test {
namespace {

// Starts the batch in a child whose chatter goes to `log`.
pid_t start_child(Place& place, std::chrono::microseconds sweep, int64_t queue_max = 8,
                  size_t block = SIZE_MAX, const std::string& log = "/dev/null") {
  const pid_t child = ::fork();
  if (child != 0) return child;
  const int to = ::open(log.c_str(), O_WRONLY | O_CREAT, 0644);
  ::dup2(to, STDERR_FILENO);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) ::signal(signal, SIG_DFL);
  Status status;
  {
    MadeUpScheduler scheduler(queue_max, sweep, block);
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

TEST_CASE("only rows that were in the block are suspects, and halving finds the one") {
  Place place;
  const std::string poison = "{\"prompt\":[" + std::to_string(MadeUpScheduler::kPoison) + "]}\n";
  place.write_input(plain_input(150) + poison + plain_input(149, 150));
  place.flags.resume = true;
  const auto run = [&] {
    return wait_for(start_child(place, std::chrono::microseconds(100), 64, 16));
  };
  REQUIRE(WIFSIGNALED(run()));
  const auto suspects = CrashMark::read(place.journal() + ".crashed").rows;
  CHECK(suspects.size() <= 16);
  CHECK(std::count(suspects.begin(), suspects.end(), 151) == 1);
  int crashes = 1;
  for (int status = 0; WIFSIGNALED(status = run()); ++crashes) {
    // All above suspicion have their results before the suspects' turn comes.
    CHECK(Journal::inspect(place.journal()).value().finished >= 300 - 16);
    REQUIRE(crashes <= 6);  // Sixteen, eight, four, two, one
  }
  CHECK(crashes >= 2);
  const auto rows = place.rows();
  REQUIRE(rows.size() == 300);
  for (size_t i = 0; i < 300; ++i) {
    CHECK(rows[i]["response"]["status_code"] == (i == 150 ? 500 : 200));
  }
  CHECK(rows[150]["error"]["code"] == "row_crashed");
}

// An interrupt waits for the block alone: were the queue waited for, its short rows would all end
// within the time that the block is given.
TEST_CASE("an interrupted run does not wait for rows that have not begun") {
  Place place;
  place.write_input(plain_input(120));
  MadeUpScheduler scheduler(64, std::chrono::milliseconds(1), 2);
  scheduler.interrupt_after_tokens = 20;
  CHECK(place.run(&scheduler).code() == Code::kCancelled);
  CHECK(Journal::inspect(place.journal()).value().finished < 20);
}

TEST_CASE("the second interrupt ends the program at once and says how to go on") {
  Place place;
  std::string text;
  for (int i = 0; i < 4; ++i) text += "{\"prompt\":[5],\"max_tokens\":480}\n";
  place.write_input(text);
  const std::string log = place.journal() + ".log";
  place.flags.progress = "json";
  const pid_t child = start_child(place, std::chrono::milliseconds(20), 8, 4, log);
  const auto said = [&](const std::string& what) {
    std::ifstream in(log);
    return std::string(std::istreambuf_iterator<char>(in), {}).find(what) != std::string::npos;
  };
  const auto wait_until = [](const std::function<bool()>& holds) {
    for (int i = 0; i < 20'000 && !holds(); ++i) ::usleep(1000);
    REQUIRE(holds());
  };
  wait_until([&] { return said("lines_total"); });  // Its progress: the run has begun.
  ::kill(child, SIGHUP);  // A terminal that was closed is an interrupt, too.
  wait_until([&] { return said("Interrupted: "); });
  ::kill(child, SIGINT);
  const int status = wait_for(child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 130);
  CHECK(said("ended at once"));
  CHECK(said("--resume"));
  place.flags.resume = true;
  REQUIRE(place.run().ok());
  CHECK(place.rows().size() == 4);
}

TEST_CASE("a row that crashes the program gets an error; its companions get their results") {
  Place place;
  const std::string poison = "{\"prompt\":[" + std::to_string(MadeUpScheduler::kPoison) + "]}\n";
  place.write_input(mixed_input(9) + poison + mixed_input(9) + poison);
  place.flags.resume = true;
  int crashes = 0;
  int status = 0;
  do {
    REQUIRE(crashes <= 8);
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

// An engine that failed is not waited for: what it ran may end when the run has.
TEST_CASE("a row that ends after its run finds the crash mark gone and does no harm") {
  Place place;
  CrashMark::Slots slots;
  {
    const CrashMark mark(place.journal() + ".crashed", 2);
    slots = mark.slots();
    slots.set(1, 7);
  }
  slots.set(1, 0);
  slots.set(0, 8);
  CHECK_FALSE(std::filesystem::exists(place.journal() + ".crashed"));
}

}  // namespace
}  // namespace spillway::batch_test::kill_test
