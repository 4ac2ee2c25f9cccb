// The real `spillway bench --json --trace` on a tiny checkpoint: both files agree about what ran.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/golden.h"
#include "tests/support/json_file.h"
#include "tests/support/places.h"

namespace spillway::endtoend_bench_test {
namespace {

using nlohmann::json;

TEST_CASE("bench times a run, holds it against its bound and traces it", "[slow]") {
  const test::TemporaryCache place;
  const std::string model = test::read_golden("pre_ln_relu").checkpoints.front();
  const std::string report = place.path() + "/report.json", trace = place.path() + "/trace.json";
  const std::string command = test::program() + " bench " + model +
                              " --sequences 3 --prompt-tokens 5 --new-tokens 4 --json --trace " +
                              trace + " > " + report + " 2> " + place.path() + "/log";
  REQUIRE(std::system(command.c_str()) == 0);

  const json result = test::read_json(report);
  CHECK(result["tokens_per_second"].get<double>() > 0);
  CHECK(result["total_seconds"].get<double>() ==
        Approx(result["prefill_seconds"].get<double>() + result["decode_seconds"].get<double>()));
  CHECK(result["efficiency"].get<double>() ==
        Approx(result["bound"]["seconds"].get<double>() / result["total_seconds"].get<double>()));
  CHECK(result["bound"]["seconds"].get<double>() > 0);
  CHECK(result["efficiency_of_kernels"].get<double>() > 0);
  CHECK(result["hardware"]["products_peak"]["operations_per_second"].get<double>() > 0);
  CHECK(result["peak_host_bytes"].get<uint64_t>() > 0);
  const json& time = result["time_by_cause"];
  CHECK(time["prefill"]["sweeps"].get<int>() + time["decode"]["sweeps"].get<int>() >= 4);
  const double inside =
      time["prefill"]["seconds"].get<double>() + time["decode"]["seconds"].get<double>();
  CHECK(inside + time["outside_sweeps_seconds"].get<double>() >=
        Approx(result["total_seconds"].get<double>()));

  std::map<std::string, int> ops;
  std::map<int, std::string> rows;
  const json events = test::read_json(trace)["traceEvents"];
  for (const json& event : events) {
    if (event["name"] == "thread_name") rows[event["tid"]] = event["args"]["name"];
    if (event["ph"] == "X" && rows.at(event["tid"]) != "ceiling") ++ops[event["name"]];
  }
  for (const char* op : {"gather", "normalize", "linear", "attention"}) {
    INFO(op);
    CHECK(ops[op] > 0);
  }
}

TEST_CASE("bench projects the decode steps that it was told to leave out", "[slow]") {
  const test::TemporaryCache place;
  const std::string model = test::read_golden("pre_ln_relu").checkpoints.front();
  const std::string report = place.path() + "/report.json";
  const std::string bench = test::program() + " bench " + model +
                            " --sequences 5 --prompt-tokens 5 --new-tokens 60 --json";
  const std::string out = " > " + report + " 2> " + place.path() + "/log";
  REQUIRE(test::exit_of(bench + " --decode-steps 7" + out) == 0);
  const json result = test::read_json(report);
  CHECK(result["projected"] == true);
  const json& measured = result["measured"];
  CHECK(measured["decode_steps"] == 7);
  // A first token and 7 of each, and what those that started earlier have more.
  const auto generated = measured["generated_tokens"].get<int>();
  CHECK(generated >= 5 * 8);
  CHECK(generated < 5 * 60);
  const double prefill = result["prefill_seconds"], decode = result["decode_seconds"];
  CHECK(decode == Approx(measured["decode_seconds"].get<double>() / 7 * 59));
  CHECK(result["total_seconds"].get<double>() == Approx(prefill + decode));
  CHECK(result["tokens_per_second"].get<double>() == Approx(5 * 60 / (prefill + decode)));
  // The run ends after the cut, which is inside a sweep.
  const double until_cut = prefill + measured["decode_seconds"].get<double>();
  CHECK(measured["total_seconds"].get<double>() >= Approx(until_cut));
  // What ran is held against its own bound.
  CHECK(result["efficiency"].get<double>() ==
        Approx(result["bound"]["seconds"].get<double>() / measured["total_seconds"].get<double>()));

  // No fewer steps than there are: nothing to project.
  REQUIRE(test::exit_of(bench + " --decode-steps 59" + out) == 0);
  CHECK(test::read_json(report)["projected"] == false);
  CHECK(test::read_json(report)["measured"].is_null());
  CHECK(test::exit_of(bench + " --decode-steps 7 --block 3" + out) == 2);
}

TEST_CASE("a prediction that cannot be made does not cost the result", "[slow]") {
  const test::TemporaryCache place;
  const std::string model = test::read_golden("pre_ln_relu").checkpoints.front();
  const std::string packed = place.path() + "/model.spill", report = place.path() + "/report.json";
  const std::string log = " 2> " + place.path() + "/log";
  REQUIRE(std::system((test::program() + " convert " + model + " " + packed + log).c_str()) == 0);
  // No home, so no place for a profile.
  const std::string command =
      "env -u HOME -u XDG_CACHE_HOME -u SPILLWAY_CACHE " + test::program() + " bench " + packed +
      " --sequences 1 --prompt-tokens 3 --new-tokens 2 --json > " + report + log;
  REQUIRE(std::system(command.c_str()) == 0);
  const json result = test::read_json(report);
  CHECK(result["tokens_per_second"].get<double>() > 0);
  CHECK(result["predicted_tokens_per_second"].is_null());
}

TEST_CASE("a trace that cannot be written stops bench before the work") {
  const std::string command = test::program() +
                              " bench opt-175b --dummy-weights --trace /nowhere/trace.json "
                              "2> /dev/null > /dev/null";
  CHECK(std::system(command.c_str()) != 0);
}

}  // namespace
}  // namespace spillway::endtoend_bench_test
