// The real binary on a real (tiny) checkpoint, killed twenty times in the middle of a batch: every
// line is in the output exactly once and equal to that of an uninterrupted run in the input's
// order.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "scheduler/journal.h"
#include "tests/support/golden.h"
#include "tests/support/places.h"
#include "tests/support/seed.h"

namespace spillway::endtoend_batch_kill_test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kKills = 20;
constexpr int kLines = 400;

class Batch {
 public:
  Batch() : model_(test::read_golden("pre_ln_relu").checkpoints.front()) {}

  void write_input(std::mt19937& random) const {
    std::ofstream out(input());
    for (int i = 0; i < kLines; ++i) {
      if (i % 40 == 17) {
        out << "{\"prompt\": [1], \"temperature\": 99}\n";  // A bad line now and then
        continue;
      }
      nlohmann::json body = {{"prompt", nlohmann::json::array()},
                             {"max_tokens", 1 + random() % 64},
                             {"temperature", i % 2},
                             {"ignore_eos", true},
                             {"return_token_ids", true}};
      // A third begins with one of three beginnings that are long enough to change the order.
      const int beginning = i % 3 == 1 ? static_cast<int>(random() % 3) : -1;
      for (int t = 0; t < 64 && beginning >= 0; ++t) {
        body["prompt"].push_back(100 + 9 * beginning + t % 9);
      }
      if (beginning >= 0) body["max_tokens"] = 1 + random() % 24;
      for (unsigned t = 0; t < 1 + random() % 40; ++t) body["prompt"].push_back(3 + random() % 90);
      if (i % 7 == 3) body["n"] = 2;
      if (i % 3 == 0) {
        body = {{"custom_id", "line-" + std::to_string(i)},
                {"method", "POST"},
                {"url", "/v1/completions"},
                {"body", body}};
      }
      out << body.dump() << "\n";
    }
  }

  // Starts `spillway batch ... --resume`.
  pid_t start(bool reorder = true) const {
    const std::string program = test::program();
    const pid_t child = ::fork();
    if (child != 0) return child;
    const int log = ::open(path("log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    ::execl(program.c_str(), "spillway", "batch", model_.c_str(), "--input", input().c_str(),
            "--output", output().c_str(), "--resume", "--seed", "11", "--format", "f32", "--block",
            "8", "--device", "cpu", reorder ? nullptr : "--no-reorder", nullptr);
    ::_exit(127);
  }

  // The output's lines without what the clock gives.
  std::vector<nlohmann::json> rows() const {
    std::vector<nlohmann::json> rows;
    std::ifstream in(output());
    for (std::string line; std::getline(in, line);) {
      rows.push_back(nlohmann::json::parse(line));
      rows.back()["response"]["body"].erase("created");
      // What a line finds cached depends on which lines ran before it in the same process.
      auto& body = rows.back()["response"]["body"];
      if (body.contains("usage")) body["usage"].erase("prompt_tokens_details");
    }
    return rows;
  }

  // Lines in the journal, 0 without one.
  int64_t journaled() const {
    const auto counts = Journal::inspect(output() + ".journal");
    return counts.ok() ? counts->finished : 0;
  }

  void remove_output() const { std::filesystem::remove(output()); }
  std::string log() const {
    std::ifstream in(path("log"));
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::string path(const std::string& name) const { return place_.path() + "/" + name; }
  std::string input() const { return path("in.jsonl"); }
  std::string output() const { return path("out.jsonl"); }

  test::TemporaryCache place_;
  std::string model_;
};

std::chrono::microseconds time_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
}

// True when the child ended by itself within `time` of `start`; otherwise it is killed.
bool ends_within(pid_t child, Clock::time_point start, std::chrono::microseconds time,
                 int* status) {
  while (Clock::now() - start < time) {
    if (::waitpid(child, status, WNOHANG) == child) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, status, 0);
  return !WIFSIGNALED(*status);
}

TEST_CASE("kill -9 twenty times in the middle of a batch: every line once", "[slow]") {
  const unsigned seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  const Batch batch;
  batch.write_input(random);

  // The first run converts the model too, so it says nothing about how long a batch takes.
  int status = 0;
  REQUIRE(::waitpid(batch.start(false), &status, 0) > 0);
  INFO(batch.log());
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  CHECK(batch.log().find("begin alike") == std::string::npos);
  const auto whole = batch.rows();
  REQUIRE(whole.size() == kLines);
  batch.remove_output();

  // About what a run of all lines takes now, since how busy the machine is changes: no longer than
  // the last such run that ended, and longer again when runs are killed before a line is done.
  std::chrono::microseconds whole_time = std::chrono::minutes(10);
  bool fresh = true;  // The next run has all lines to do.
  int kills = 0;
  int halfway = 0;  // Kills with some lines done and some not
  for (int round = 0; kills < kKills || halfway == 0; ++round) {
    REQUIRE(round < 10 * kKills);
    // The run of round 0 is there to be timed.
    const auto time =
        round == 0 ? whole_time : std::chrono::microseconds(random() % (whole_time.count() + 1));
    const Clock::time_point start = Clock::now();
    const bool reorder = round == 0 || random() % 2 == 0;
    if (!ends_within(batch.start(reorder), start, time, &status)) {
      ++kills;
      const int64_t done = batch.journaled();
      halfway += done > 0 && done < kLines ? 1 : 0;
      if (done == 0) whole_time += whole_time / 4;
      fresh = false;
      continue;
    }
    REQUIRE(WEXITSTATUS(status) == 0);  // It was done before its time: begin anew.
    REQUIRE(batch.rows() == whole);
    if (fresh) whole_time = std::min(whole_time, time_since(start));
    batch.remove_output();
    fresh = true;
  }
  REQUIRE(::waitpid(batch.start(), &status, 0) > 0);
  INFO(batch.log());
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  CHECK(batch.rows() == whole);
  CAPTURE(whole_time.count(), kills);
  CHECK(halfway > 0);
  CHECK(batch.log().find("begin alike") != std::string::npos);
}

}  // namespace
}  // namespace spillway::endtoend_batch_kill_test
