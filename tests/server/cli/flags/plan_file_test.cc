#include "server/cli/flags/plan_file.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "scheduler/planning/engine_flags.h"
#include "server/cli/flags/engine_settings.h"
#include "tests/support/temp_directory.h"

namespace spillway::plan_file_test {
namespace {

struct Fixture {
  Fixture() { add_engine_flags(settings, &flags); }

  Status read(const std::string& text, std::map<std::string, std::string> given = {}) {
    std::ofstream(path) << text;
    given["plan"] = path;
    SettingInputs inputs;
    inputs.flags = std::move(given);
    return resolve(settings, inputs);
  }
  std::string message(const std::string& text) { return std::string(read(text).message()); }

  TempDirectory directory;
  const std::string path = directory.path() + "/plan.json";
  Settings settings;
  EngineFlags flags;
};

TEST_CASE_METHOD(Fixture, "a plan sets what nobody else did") {
  REQUIRE(read(R"({"version": 1, "model": "opt-125m", "weights": [20, 0, 80], "block": 96,
                   "micro_batch": 8, "kv_rule": "h2o", "kv_heavy": 0.1, "format": "q4",
                   "host_memory": "8GiB", "disk_memory": null, "ranks": 2})",
               {{"block", "12"}})
              .ok());
  CHECK(flags.block == 12);
  CHECK(*flags.weights == TierPercent{20, 0, 80});
  CHECK(flags.micro_batch == 8);
  CHECK(flags.kv_rule == "h2o");
  CHECK(flags.kv_heavy->ratio == Approx(0.1));
  CHECK(flags.format == Format::kQ4);
  CHECK(flags.host_memory_bytes == uint64_t{8} << 30);
  CHECK(!flags.disk_memory_bytes);
  CHECK(flags.ranks == 2);
}

TEST_CASE_METHOD(Fixture, "GPUs that are named count, not as many ranks as the plan has") {
  REQUIRE(read(R"({"version": 1, "ranks": 2})", {{"gpus", "0,1,2,3"}}).ok());
  CHECK(flags.rank_count() == 4);
  CHECK(validate(flags).ok());
}

TEST_CASE_METHOD(Fixture, "another KV rule than the plan's starts from its own amounts") {
  const std::string h2o = R"({"version": 1, "kv_rule": "h2o", "kv_heavy": 0.3, "kv_recent": 7,
                              "kv_ratio_of": "prompt"})";
  SECTION("full") {
    REQUIRE(read(h2o, {{"kv-rule", "full"}}).ok());
    REQUIRE(validate(flags).ok());
    CHECK(kv_rule_of(flags) == KvRule());
  }
  SECTION("window") {
    REQUIRE(read(h2o, {{"kv-rule", "window"}}).ok());
    REQUIRE(validate(flags).ok());
    CHECK(kv_rule_of(flags) == apply({KvRuleKind::kWindow, {}, {}, {}, {}}, {}));
  }
  SECTION("written by hand, as the flags are") {
    REQUIRE(
        read(R"({"version": 1, "kv-rule": "h2o", "kv-heavy": 9})", {{"kv-rule", "window"}}).ok());
    REQUIRE(validate(flags).ok());
    CHECK_FALSE(flags.kv_heavy);
  }
  SECTION("the same rule keeps the plan's, but for what is said") {
    REQUIRE(read(h2o, {{"kv-rule", "h2o"}, {"kv-recent", "9"}}).ok());
    CHECK(flags.kv_heavy == KvAmount{0, 0.3});
    CHECK(flags.kv_recent == KvAmount{9, 0});
    CHECK(flags.kv_ratio_of == "prompt");
  }
  SECTION("a flag's protected positions take the place of the plan's, by either name") {
    const std::string window = R"({"version": 1, "kv_rule": "window", "kv_sink": 4})";
    REQUIRE(read(window, {{"kv-keep", "prompt"}}).ok());
    REQUIRE(validate(flags).ok());
    CHECK(kv_rule_of(flags).keep == KvKeep::whole_prompt());
  }
  SECTION("h2o after a plan of window keeps a fifth, not more") {
    REQUIRE(read(R"({"version": 1, "kv_rule": "window", "kv_recent": 0.2, "kv_sink": 4})",
                 {{"kv-rule", "h2o"}})
                .ok());
    REQUIRE(validate(flags).ok());
    CHECK(kv_rule_of(flags) == apply({KvRuleKind::kH2o, {}, {}, {}, {}}, {}));
  }
}

TEST_CASE_METHOD(Fixture, "a plan that cannot be read is refused by name") {
  CHECK(message("[1]").find("not a JSON object") != std::string::npos);
  CHECK(message("{}").find("version is missing") != std::string::npos);
  CHECK(
      message(R"({"version": 2})").find("version 2 of a plan, and this program reads version 1") !=
      std::string::npos);
  CHECK(message(R"({"version": 1, "blok": 3})").find("blok: a plan has no such member") !=
        std::string::npos);
  CHECK(message(R"({"version": 1, "plan": "x"})").find("no such member") != std::string::npos);
  CHECK(message(R"({"version": 1, "block": 0})").find("block") != std::string::npos);
  CHECK(message(R"({"version": 1, "weights": [50, 0, 80]})").find("adds up to 130") !=
        std::string::npos);
  CHECK(message(R"({"version": 1, "weights": {}})").find("must be a string") != std::string::npos);
  SettingInputs inputs;
  inputs.flags = {{"plan", "/nowhere/plan.json"}};
  CHECK(resolve(settings, inputs).message().find("/nowhere/plan.json") != std::string::npos);
}

}  // namespace
}  // namespace spillway::plan_file_test
