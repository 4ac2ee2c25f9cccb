// `spillway cache`: which flags go together, and what it does and returns.
#include "server/cli/cache/cache.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "offload/model_cache.h"
#include "offload/model_source.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/golden.h"
#include "tests/support/temp_directory.h"

namespace spillway::cache_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string pack(const TempDirectory& temp) {
  fs::create_directory(temp / "model");
  write_file(temp / "model/config.json", opt_config(checkpoint_shape()));
  write_file(temp / "model/model.safetensors", safetensors_file(opt_tensors(checkpoint_shape())));
  ModelSourceOptions options;
  options.cache_directory = temp / "cache";
  return resolve_model(temp / "model", options).value().path;
}

json run(const TempDirectory& temp, CacheFlags flags, Code code = Code::kOk) {
  flags.json = true;
  test::Captured out(stdout);
  const Status status = run_cache(flags, temp / "cache");
  const std::string text = out.end();
  INFO(status.message());
  CHECK(status.code() == code);
  return json::parse(text);
}

TEST_CASE("limits go with prune, and only known actions are taken") {
  CHECK(validate(CacheFlags{}).ok());
  CHECK(validate(CacheFlags{.action = "list"}).ok());
  CHECK(validate(CacheFlags{.bytes_max = 1}).ok());
  CHECK(validate(CacheFlags{.action = "prune", .bytes_max = 1, .unused_seconds_max = 2.0}).ok());
  CHECK_THAT(std::string(validate(CacheFlags{.action = "clean"}).message()),
             Catch::Contains("'clean'"));
  for (const CacheFlags& flags : {CacheFlags{.action = "list", .bytes_max = 1},
                                  CacheFlags{.action = "list", .unused_seconds_max = 1.0},
                                  CacheFlags{.action = "list", .dry_run = true}}) {
    CHECK_THAT(std::string(validate(flags).message()), Catch::Contains("go with prune"));
  }
}

TEST_CASE("a cache is listed and pruned") {
  const TempDirectory temp;
  const std::string packed = pack(temp);
  for (const char* action : {"", "list"}) {
    const json listed = run(temp, {.action = action});
    CHECK(listed["models"][0]["path"] == packed);
    CHECK(listed["bytes"] == fs::file_size(packed));
  }
  CHECK(run(temp, {.action = "prune"})["removed"].empty());
  CHECK(run(temp, {.dry_run = true})["removed"].empty());
  CHECK(run(temp, {.bytes_max = 0, .dry_run = true})["removed"][0]["path"] == packed);
  CHECK(fs::exists(packed));
  {
    const auto use = ModelUse::begin(packed);
    const json kept = run(temp, {.bytes_max = 0}, Code::kCapacity);
    CHECK(kept["in_use"] == json{packed});
    CHECK(kept["bytes"] == fs::file_size(packed));
    CHECK(fs::exists(packed));
  }
  const json pruned = run(temp, {.action = "prune", .unused_seconds_max = 0.0});
  CHECK(pruned["removed"][0]["path"] == packed);
  CHECK(pruned["bytes"] == 0);
  CHECK_FALSE(fs::exists(packed));
}

TEST_CASE("the cache's command line") {
  const test::TemporaryCache cache;
  const auto exit_of = [](std::vector<const char*> words) {
    std::vector<Command> commands;
    commands.push_back(cache_command());
    words.insert(words.begin(), {"spillway", "cache"});
    const test::Captured out(stdout);
    return run_command_line(commands, static_cast<int>(words.size()), words.data(),
                            [](const char*) { return nullptr; });
  };
  CHECK(exit_of({}) == kExitSuccess);
  CHECK(exit_of({"prune", "--max-size", "50GiB", "--older-than", "30d", "--dry-run"}) ==
        kExitSuccess);
  CHECK(exit_of({"--older-than", "30"}) == kExitSuccess);
  const test::Captured errors;
  CHECK(exit_of({"prune", "--older-than", "1 moon"}) == kExitUsage);
  CHECK(exit_of({"prune", "--max-size", "big"}) == kExitUsage);
  CHECK(exit_of({"list", "--dry-run"}) == kExitUsage);
  CHECK(exit_of({"clear"}) == kExitUsage);
}

}  // namespace
}  // namespace spillway::cache_test
