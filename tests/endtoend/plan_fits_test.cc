// What `spillway plan` finds for random budgets really runs within them: the plan file is carried
// out by `spillway bench` in a process of its own, whose largest resident set is looked at.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "policy/hardware_json.h"
#include "tests/support/golden.h"
#include "tests/support/hardware.h"
#include "tests/support/json_file.h"
#include "tests/support/places.h"

namespace spillway::endtoend_plan_fits_test {
namespace {

struct Ended {
  int exit = -1;
  uint64_t peak_bytes = 0;  // Of its largest process
};

Ended run(const std::string& command) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  struct rusage usage = {};
  REQUIRE(::wait4(child, &status, 0, &usage) == child);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, static_cast<uint64_t>(usage.ru_maxrss)
                                                            << 10};
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("every plan that is found runs within its budgets", "[slow]") {
  constexpr uint64_t kSeed = 20261122;
  constexpr int kRounds = 5;
  std::mt19937_64 random(kSeed);
  const test::TemporaryCache place;
  const std::string hardware = place.path() + "/hardware.json", plan = place.path() + "/plan.json",
                    report = place.path() + "/report.json", log = place.path() + "/log";
  std::ofstream(hardware) << hardware_profile_json(test::sample_hardware(false));
  int fitting = 0, spilling = 0;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t budget_mib = 340 + random() % 500;
    const char* const formats[] = {"f32", "bf16", "q4"};
    const std::string format = formats[random() % 3];
    const std::string lengths = " --prompt-tokens " + std::to_string(1 + random() % 24) +
                                " --new-tokens " + std::to_string(1 + random() % 4);
    const std::string sequences = " --sequences " + std::to_string(1 + random() % 12);
    const std::string ask = test::program() + " plan opt-125m --hardware " + hardware + lengths +
                            sequences + " --format " + format + " --host-memory " +
                            std::to_string(budget_mib) + "MiB" +
                            (random() % 2 == 0 ? " --kv-format q4" : "") + " --output " + plan +
                            " > " + report + " 2> " + log;
    INFO("seed " << kSeed << ", round " << round << ": " << ask);
    const Ended asked = run(ask);
    if (asked.exit == 3) continue;  // Nothing fits, and it says so.
    REQUIRE(asked.exit == 0);
    ++fitting;
    if (test::read_json(plan)["weights"][2] > 0) ++spilling;
    const Ended ended =
        run(test::program() + " bench opt-125m --dummy-weights --device cpu --disk-dir " +
            place.path() + lengths + sequences + " --json --plan " + plan + " > " + report +
            " 2> " + log);
    INFO(text_of(log));
    REQUIRE(ended.exit == 0);
    const nlohmann::json result = test::read_json(report);
    CHECK(result["host_memory_bytes"] == budget_mib << 20);
    CHECK(ended.peak_bytes <= budget_mib << 20);
    // The check means something: most of the weights in memory were touched.
    CHECK(ended.peak_bytes > result["bytes_by_tier"]["weights"]["device"].get<uint64_t>());
  }
  CHECK(fitting >= 3);
  CHECK(spilling >= 1);
}

}  // namespace
}  // namespace spillway::endtoend_plan_fits_test
