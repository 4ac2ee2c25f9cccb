// The real `spillway plan` under a latency limit, with its frontier as JSON and as the figure that
// scripts/draw_frontier.py makes of it, and for the requests of a file.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "policy/hardware_json.h"
#include "tests/support/golden.h"
#include "tests/support/hardware.h"
#include "tests/support/json_file.h"
#include "tests/support/places.h"

namespace spillway::plan_frontier_test {
namespace {

using nlohmann::json;

struct Fixture {
  Fixture() { std::ofstream(hardware) << hardware_profile_json(test::sample_hardware(true)); }

  int plan(const std::string& flags) const {
    const std::string command = test::program() + " plan opt-6.7b --hardware " + hardware + " " +
                                flags + " > " + report + " 2> " + log;
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  json answer() const { return test::read_json(report); }
  static std::string text(const std::string& path) {
    std::ostringstream all;
    all << std::ifstream(path).rdbuf();
    return all.str();
  }

  test::TemporaryCache place;
  const std::string hardware = place.path() + "/hardware.json";
  const std::string report = place.path() + "/report", log = place.path() + "/log";
};

TEST_CASE_METHOD(Fixture, "plan keeps a latency, or names the lowest") {
  REQUIRE(plan("--json") == 0);
  const json fastest = answer()["predicted"];
  const double limit = fastest["latency_seconds"].get<double>() / 4;
  REQUIRE(plan("--json --latency " + std::to_string(limit)) == 0);
  const json limited = answer()["predicted"];
  CHECK(limited["latency_seconds"].get<double>() <= limit);
  CHECK(limited["tokens_per_second"].get<double>() < fastest["tokens_per_second"].get<double>());
  CHECK(limited["tokens_per_second"].get<double>() >
        fastest["tokens_per_second"].get<double>() / 8);
  CHECK(!answer().contains("frontier"));

  CHECK(plan("--latency 0.0001") == 3);
  const std::string message = text(log);
  INFO(message);
  const size_t at = message.find("; --latency ");
  REQUIRE(at != std::string::npos);
  std::istringstream fits(message.substr(at + 12));
  std::string seconds;
  fits >> seconds;
  CHECK(plan("--latency " + seconds) == 0);
  CHECK(text(report).find("latency of a full block") != std::string::npos);
}

TEST_CASE_METHOD(Fixture, "plan lists and draws the frontier") {
  const std::string figure = place.path() + "/frontier.svg";
  REQUIRE(plan("--json --frontier") == 0);
  const json found = answer();
  const json& frontier = found["frontier"];
  REQUIRE(frontier.size() >= 4);
  for (size_t i = 0; i < frontier.size(); ++i) {
    for (const char* name : {"block", "weights", "kv", "activations", "latency_seconds",
                             "tokens_per_second", "bottleneck", "flags"}) {
      CHECK(frontier[i].contains(name));
    }
    if (i == 0) continue;
    CHECK(frontier[i]["latency_seconds"] > frontier[i - 1]["latency_seconds"]);
    CHECK(frontier[i]["tokens_per_second"] > frontier[i - 1]["tokens_per_second"]);
  }
  REQUIRE(std::system(("python3 " + test::source_directory() + "/scripts/draw_frontier.py " +
                       report + " --output " + figure)
                          .c_str()) == 0);
  const std::string svg = text(figure);
  CHECK(svg.rfind("<svg ", 0) == 0);
  CHECK(svg.find("opt-6.7b on a device &quot;of&quot; tests") != std::string::npos);
  // A row's flags give the row.
  const json& row = frontier[frontier.size() / 2];
  REQUIRE(plan("--json " + row["flags"].get<std::string>()) == 0);
  CHECK(answer()["predicted"]["tokens_per_second"].get<double>() ==
        Approx(row["tokens_per_second"].get<double>()));
  CHECK(answer()["predicted"]["latency_seconds"].get<double>() ==
        Approx(row["latency_seconds"].get<double>()));

  REQUIRE(plan("--frontier") == 0);
  CHECK(text(report).find(std::to_string(frontier.size()) + " plans that none beats") !=
        std::string::npos);
  CHECK(plan("--frontier --cost-model flexgen") == 2);
}

TEST_CASE_METHOD(Fixture, "plan takes the requests of a file") {
  const std::string file = place.path() + "/workload.jsonl";
  std::ofstream(file) << "{\"prompt_tokens\": 100, \"new_tokens\": 10, \"count\": 300}\n"
                         "{\"prompt\": [5, 6, 7], \"max_tokens\": 30}\n";
  REQUIRE(plan("--json --workload " + file) == 0);
  const json found = answer();
  REQUIRE(found["workload"].size() == 2);
  CHECK(found["workload"][0]["count"] == 300);
  CHECK(found["workload"][1]["prompt_tokens"] == 3);
  CHECK(found["predicted"]["generated_tokens"] == 3030);
  REQUIRE(plan("--workload " + file) == 0);
  CHECK(text(report).find("301 requests (100 + 10 tokens in the mean, 100 and 30 at most)") !=
        std::string::npos);
  CHECK(plan("--workload " + file + " --sequences 3") == 2);
  std::ofstream(file) << "{\"prompt_tokens\": 100}\n";
  CHECK(plan("--workload " + file) == 2);
  CHECK(text(log).find("line 1") != std::string::npos);
  CHECK(plan("--workload /nowhere/file") == 2);
}

}  // namespace
}  // namespace spillway::plan_frontier_test
