// The real `spillway eval --json` on the demo model: the full cache beside a KV rule, and rules
// side by side at several budgets.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/golden.h"
#include "tests/support/places.h"

namespace spillway {
namespace {

using nlohmann::json;

TEST_CASE("eval holds a KV rule against the full cache") {
  const test::TemporaryCache place;
  const std::string demo = test::source_directory() + "/configs/demo";
  const std::string report = place.path() + "/report.json";
  const std::string command = test::program() + " eval " + demo + " --text " + demo +
                              "/heldout.jsonl --context 200 --prompt-tokens 120 --windows 3 " +
                              "--kv-rule h2o --kv-heavy 0.04 --kv-recent 8 --kv-budgets 100,20 " +
                              "--json > " + report + " 2> " + place.path() + "/log";
  REQUIRE(std::system(command.c_str()) == 0);
  std::ifstream in(report);
  const json result = json::parse(in);
  CHECK(result["windows"] == 3);
  CHECK(result["tokens"] == 3 * 80);
  CHECK(result["kv_rule"] == "h2o");
  CHECK(result["kv_heavy"] == 0.04);
  CHECK(result["kv_recent"] == 8);
  CHECK(result["kv_ratio_of"] == "total");
  const auto full = result["perplexity_full"].get<double>();
  const auto limited = result["perplexity"].get<double>();
  CHECK(full > 1);
  CHECK(limited > 1);
  CHECK(limited != full);
  CHECK(result["perplexity_relative"].get<double>() == Approx(limited / full));
  REQUIRE(result["budgets"].size() == 4);
  for (const json& budget : result["budgets"]) {
    INFO(budget.dump());
    // All of the cache is the full cache, by whatever name.
    const auto perplexity = budget["perplexity"].get<double>();
    CHECK((perplexity == full) == (budget["percent"] == 100));
  }
  CHECK(result["budgets"][0]["kv_rule"] == "h2o");
  CHECK(result["budgets"][1]["kv_rule"] == "window");
}

}  // namespace
}  // namespace spillway
