// Tasks on threads: all of them once, the first error, an early stop.
#include "offload/io/parallel_tasks.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

namespace spillway::parallel_tasks_test {
namespace {

const std::function<bool()> kGoOn = [] { return true; };

TEST_CASE("every task runs once, on a thread of the right number") {
  std::vector<std::atomic<int>> runs(1000);
  std::atomic<bool> wrong = false;
  const Status status = run_tasks(
      runs.size(), 4,
      [&](size_t index, unsigned thread) {
        ++runs[index];
        if (thread >= 4) wrong = true;
        return Status();
      },
      kGoOn);
  CHECK(status.ok());
  CHECK_FALSE(wrong);
  for (const auto& count : runs) REQUIRE(count == 1);
  CHECK(run_tasks(
            0, 3, [](size_t, unsigned) { return corruption("ran"); }, kGoOn)
            .ok());
}

TEST_CASE("a failed task stops the rest and its error comes back") {
  std::atomic<size_t> started = 0;
  const Status status = run_tasks(
      100'000, 2,
      [&](size_t index, unsigned) {
        ++started;
        if (index == 10) return invalid_argument("the tenth");
        // Late enough that the failure is seen first, even where its thread loses the processor.
        if (index > 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return Status();
      },
      kGoOn);
  CHECK(status.message() == "the tenth");
  CHECK(started < 100'000);
}

TEST_CASE("a tick that says no stops the rest") {
  std::atomic<size_t> started = 0;
  const Status status = run_tasks(
      10'000, 2,
      [&](size_t, unsigned) {
        ++started;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return Status();
      },
      [] { return false; });
  CHECK(status.code() == Code::kCancelled);
  CHECK(started < 10'000);
}

}  // namespace
}  // namespace spillway::parallel_tasks_test
