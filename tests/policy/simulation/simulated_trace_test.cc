#include "policy/simulation/simulated_trace.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>

#include "policy/simulation/simulated_sweep.h"
#include "tests/support/costed_plans.h"
#include "tests/support/json_file.h"
#include "tests/support/temp_directory.h"

namespace spillway::simulated_trace_test {
namespace {

using nlohmann::json;

// The names of spans by the track they are on.
std::map<std::string, std::set<std::string>> spans_by_track(const json& file) {
  std::map<int, std::string> tracks;
  std::map<std::string, std::set<std::string>> found;
  for (const json& event : file["traceEvents"]) {
    if (event["name"] != "thread_name") continue;
    tracks[event["tid"]] = event["args"]["name"];
    found[event["args"]["name"]];
  }
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "X") found[tracks[event["tid"]]].insert(event["name"]);
  }
  return found;
}

TEST_CASE("the timeline has a track for each link and processor, and waits by what they wait for") {
  const TempDirectory directory;
  CostedPlan plan = test::costed_plan();
  plan.discrete = true;
  plan.weights_from_disk = 100'000'000;
  plan.weights_on_host = 100'000'000;
  plan.kv_on_disk = 0.5;
  HardwareProfile hardware = test::cost_machine();
  hardware.link = HardwareProfile::Link{test::figure(10e9), test::figure(10e9), {}};
  const MachineRates rates = MachineRates::of(hardware, plan).value();
  const std::vector<PlannedSweeps> sweeps = {
      {.count = 2, .work = {.decoding = 8, .cached_rows = 80'000}}};
  for (const int64_t machines : {1, 2}) {
    const SimulatedRun run = simulate(plan, rates, sweeps, {}, {machines, 1e9});
    const std::string path = directory / std::to_string(machines);
    {
      const auto trace = Trace::open(path).value();
      write_timeline(run, *trace);
    }
    const auto tracks = spans_by_track(test::read_json(path));
    std::set<std::string> expected;
    for (int64_t m = 1; m <= machines; ++m) {
      const std::string prefix = machines == 1 ? "" : "machine " + std::to_string(m) + ": ";
      for (const char* name : {"compute", "compute waits for", "disk read", "disk write",
                               "host to device", "device to host", "host memory"}) {
        expected.insert(prefix + name);
      }
      CHECK(tracks.at(prefix + "disk read") == std::set<std::string>{"KV cache", "weights"});
      CHECK(tracks.at(prefix + "disk write") == std::set<std::string>{"KV cache home"});
      CHECK(tracks.at(prefix + "compute waits for").contains("KV cache"));
      CHECK(tracks.at(prefix + "compute").contains("attention"));
    }
    if (machines == 2) expected.insert("machine 1: network");
    for (const std::string& name : expected) CHECK(tracks.contains(name));
    CHECK(tracks.size() == expected.size());
  }
}

}  // namespace
}  // namespace spillway::simulated_trace_test
