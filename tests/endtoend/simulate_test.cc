// The real `spillway plan --simulate`.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/support/golden.h"
#include "tests/support/json_file.h"
#include "tests/support/places.h"

namespace spillway::simulate_test {
namespace {

using nlohmann::json;

struct Place {
  test::TemporaryCache cache;
  std::string trace = cache.path() + "/trace.json";
  std::string out = cache.path() + "/out", log = cache.path() + "/log";

  int run(const std::string& arguments) const {
    return test::exit_of(test::program() + " plan " + arguments + " > " + out + " 2> " + log);
  }
};

// opt-1.3b on a T4 that may use 1.5 GiB of its memory: weights stream from the host's.
const std::string kPlan =
    "opt-1.3b --hardware t4-16gb --device-memory 1500MiB --prompt-tokens 64 --new-tokens 8 "
    "--sequences 16 --block 16 ";

TEST_CASE("a plan is simulated, in the report and as a timeline") {
  const Place place;
  REQUIRE(place.run(kPlan + "--simulate --json --trace " + place.trace) == 0);
  const json found = test::read_json(place.out);
  const json& simulated = found["simulated"];
  const double seconds = simulated["seconds"];
  CHECK(seconds >= found["predicted"]["total_seconds"].get<double>() * 0.95);
  CHECK(seconds < found["predicted"]["total_seconds"].get<double>() * 2);
  CHECK(simulated["tokens_per_second"].get<double>() == Approx(16 * 8 / seconds));
  CHECK(simulated["generated_tokens"] == 16 * 8);
  CHECK(simulated["waits"]["weights"].get<double>() > 0);
  CHECK(simulated["resources"]["host to device"].get<double>() <= seconds);
  CHECK(simulated["sweeps_simulated"] == simulated["sweeps"]);
  CHECK(!simulated.contains("cluster"));
  CHECK(found["plan"]["block"] == 16);

  std::set<std::string> tracks;
  size_t spans = 0;
  const json trace = test::read_json(place.trace);
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") tracks.insert(event["args"]["name"].get<std::string>());
    spans += event["ph"] == "X";
  }
  CHECK(tracks.contains("compute"));
  CHECK(tracks.contains("compute waits for"));
  CHECK(tracks.contains("host to device"));
  CHECK(spans > 24 * 8 * 2);

  REQUIRE(place.run(kPlan + "--simulate") == 0);
  CHECK(test::exit_of("grep -q 'simulated: .* tokens/s' " + place.out) == 0);
  CHECK(test::exit_of("grep -q 'waits for weights' " + place.out) == 0);
  // Nothing else of a plan can be traced.
  CHECK(place.run(kPlan + "--trace " + place.trace) == 2);
  CHECK(test::exit_of("grep -q 'add --simulate' " + place.log) == 0);
  CHECK(place.run(kPlan + "--simulate --trace /nowhere/at/all") != 0);
}

TEST_CASE("several machines are simulated, one row each") {
  const Place place;
  REQUIRE(place.run(kPlan + "--cluster 3 --json") == 0);
  const json slow = test::read_json(place.out)["simulated"]["cluster"];
  CHECK(slow["network_bytes_per_second"] == 1.25e9);
  REQUIRE(slow["runs"].size() == 3);
  CHECK(slow["runs"][0]["efficiency"] == 1.0);
  REQUIRE(place.run(kPlan + "--cluster 3 --cluster-network 12.5 --json") == 0);
  const json fast = test::read_json(place.out)["simulated"]["cluster"];
  for (size_t i = 0; i < 3; ++i) {
    CHECK(fast["runs"][i]["machines"] == i + 1);
    CHECK(fast["runs"][i]["tokens_per_second"].get<double>() >=
          slow["runs"][i]["tokens_per_second"].get<double>());
  }
  REQUIRE(place.run(kPlan + "--cluster 2") == 0);
  CHECK(test::exit_of("grep -q efficiency " + place.out) == 0);
}

TEST_CASE("FlexGen's schedule is simulated beside ours") {
  const Place place;
  const std::string policy =
      "opt-30b --cost-model flexgen --simulate --micro-batch 48 --block 144 --weights 20,80,0 "
      "--kv 0,100,0 ";
  REQUIRE(place.run(policy + "--activations 0,100,0 --json --trace " + place.trace) == 0);
  const json found = test::read_json(place.out);
  CHECK(found["simulated"]["generated_tokens"] == 144 * 32);
  CHECK(found["simulated"]["waits"]["host attention"].get<double>() > 0);
  CHECK(found["simulated_our_schedule"]["generated_tokens"] == 144 * 32);
  CHECK(test::read_json(place.trace)["traceEvents"].size() > 10'000);
  REQUIRE(place.run(policy + "--activations 0,100,0") == 0);
  CHECK(test::exit_of("grep -q 'as FlexGen runs it' " + place.out) == 0);
  // A policy is needed, all of it, and one that FlexGen can run.
  CHECK(place.run(policy) == 2);
  CHECK(place.run(policy + "--activations 0,0,100") == 2);
  CHECK(place.run(policy + "--activations 0,100,0 --cluster 2") == 2);
}

}  // namespace
}  // namespace spillway::simulate_test
