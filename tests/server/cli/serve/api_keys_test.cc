// The keys of `spillway serve`: where they come from, and that no mistake leaves the door open.
#include <catch2/catch.hpp>
#include <fstream>
#include <map>

#include "server/cli/flags/command_line.h"
#include "server/cli/serve/api_keys.h"
#include "server/cli/serve/serve.h"
#include "tests/support/temp_directory.h"

namespace spillway::api_keys_test {
namespace {

using Environment = std::map<std::string, std::string>;

struct Started {
  int exit = 0;
  bool reached_the_model = false;
};

// `spillway serve m ARGUMENTS`, up to where it would open the model.
Started serve(std::vector<std::string> arguments, const Environment& environment = {}) {
  Started started;
  std::vector<Command> commands;
  commands.push_back(serve_command(
      [&](const std::string&, const EngineFlags&, const OpenFor&) -> Result<ServedModel> {
        started.reached_the_model = true;
        return Status(Code::kIoError, "no model here");
      }));
  arguments.insert(arguments.begin(), {"spillway", "serve", "m", "--port", "0"});
  std::vector<const char*> words;
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  started.exit = run_command_line(
      commands, static_cast<int>(words.size()), words.data(), [&](const char* name) -> const char* {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      });
  return started;
}

TEST_CASE("an empty API key is refused before anything starts") {
  TempDirectory directory;
  const auto config = [&](const std::string& json) {
    const std::string path = directory / "config.json";
    std::ofstream(path) << json;
    return std::vector<std::string>{"--config", path};
  };
  const std::vector<std::pair<std::vector<std::string>, Environment>> empty = {
      {{"--api-key", ""}, {}},
      {{"--api-key", "k,"}, {}},
      {{"--api-key", ",k"}, {}},
      {{"--api-key", "k", "--api-key", ""}, {}},
      {{"--api-key", "", "--api-key", "k"}, {}},
      {{"--api-key="}, {}},
      {{}, {{"SPILLWAY_API_KEY", "k,"}}},
      {{}, {{"SPILLWAY_API_KEY", ""}}},
      {config(R"({"api-key": ""})"), {}},
  };
  for (const auto& [arguments, environment] : empty) {
    INFO((arguments.empty() ? environment.begin()->second : arguments.back()));
    const Started started = serve(arguments, environment);
    CHECK(started.exit == kExitUsage);
    CHECK_FALSE(started.reached_the_model);
  }
  for (const char* list : {R"(["k", ""])", R"(["", "k"])", R"([""])", R"(["k", "", "l"])"}) {
    INFO(list);
    const Started started = serve(config("{\"api-key\": " + std::string(list) + "}"));
    CHECK(started.exit == kExitUsage);
    CHECK_FALSE(started.reached_the_model);
  }
  CHECK(serve({"--api-key", "k,l"}).reached_the_model);
  CHECK(serve({}).reached_the_model);
}

TEST_CASE("a key that no header can carry is refused without repeating it") {
  std::vector<std::string> keys;
  const Setting setting = api_key_setting(&keys);
  for (const char* bad : {"two words", " k", "k\n", "schl\xc3\xbcssel"}) {
    const Status status = setting.assign(bad);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(std::string(status.message()).find(bad) == std::string::npos);
  }
  REQUIRE(setting.assign("a,b+/=~").ok());
  CHECK(keys == std::vector<std::string>{"a", "b+/=~"});
}

TEST_CASE("keys come from a file, one a line") {
  TempDirectory directory;
  const auto read = [&](const std::string& text) {
    const std::string path = directory / "keys";
    std::ofstream(path, std::ios::binary) << text;
    return read_api_key_file(path);
  };
  const std::vector<ApiKey> two = read("# of the team\none\r\n\n  \ntwo").value();
  REQUIRE(two.size() == 2);
  CHECK(two[0].key == "one");
  CHECK(two[1].key == "two");
  CHECK(two[1].limits.slots == 0);
  const std::vector<ApiKey> noted =
      read("one   # of Ann\n  # nobody's\nt#wo slots=3 #priority=1\n").value();
  REQUIRE(noted.size() == 2);
  CHECK(noted[0].key == "one");
  CHECK(noted[1].key == "t#wo");
  CHECK(noted[1].limits.slots == 3);
  for (const char* none : {"", "\n\n", "# only a comment\n", "a b\n", "one\n\ttwo\n"}) {
    CHECK(read(none).status().code() == Code::kInvalidArgument);
  }
  CHECK(std::string(read("one\na b\n").status().message()).find("line 2") != std::string::npos);
  CHECK_FALSE(read_api_key_file(directory / "missing").ok());
  const std::string path = directory / "keys";
  REQUIRE(read("one\n").ok());
  CHECK(serve({"--api-key-file", path}).reached_the_model);
  CHECK_FALSE(serve({"--api-key-file", path + "x"}).reached_the_model);
}

TEST_CASE("behind a key there may be limits of its own") {
  TempDirectory directory;
  const auto read = [&](const std::string& text) {
    const std::string path = directory / "keys";
    std::ofstream(path, std::ios::binary) << text;
    return read_api_key_file(path);
  };
  const std::vector<ApiKey> keys =
      read(
          "one name=team-a.x_1 priority=-5..10 slots=8 tokens-per-minute=100000 connections=4\n"
          "two\n"
          "three \t slots=1 \r\n"
          "four priority=0..\n"
          "five priority=..-1\n")
          .value();
  REQUIRE(keys.size() == 5);
  const KeyLimits& all = keys[0].limits;
  CHECK(keys[0].key == "one");
  CHECK(all.name == "team-a.x_1");
  CHECK(all.priority_min == -5);
  CHECK(all.priority_max == 10);
  CHECK(all.slots == 8);
  CHECK(all.tokens_per_minute == 100'000);
  CHECK(all.connections == 4);
  CHECK(keys[1].limits.tokens_per_minute == 0);
  CHECK_FALSE(keys[1].limits.priority_min.has_value());
  CHECK(keys[2].key == "three");
  CHECK(keys[2].limits.slots == 1);
  CHECK(keys[3].limits.priority_min == 0);
  CHECK_FALSE(keys[3].limits.priority_max.has_value());
  CHECK(keys[4].limits.priority_max == -1);
  for (const char* wrong :
       {"slots=0", "slots=-1", "slots=x", "slots=", "slots", "slots=1x", "name=", "name=a/b",
        "priority=5", "priority=..", "priority=5..1", "priority=a..b", "priority=1..99999999999",
        "connections=1.5", "tokens=5", "=", "Slots=1"}) {
    INFO(wrong);
    const Status status = read("fine\nsecret-key " + std::string(wrong) + "\n").status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(std::string(status.message()).find("line 2: word 2") != std::string::npos);
    CHECK(std::string(status.message()).find("secret-key") == std::string::npos);
  }
}

TEST_CASE("printed configurations hide keys") {
  std::vector<std::string> keys;
  Settings settings;
  settings.add(api_key_setting(&keys));
  CHECK(describe(settings).find("api-key  -") == 0);
  REQUIRE(settings.set("api-key", "very-secret", SettingSource::kFlag, "--api-key").ok());
  CHECK(describe(settings).find("very-secret") == std::string::npos);
  CHECK(describe(settings).find("(hidden)") != std::string::npos);
}

}  // namespace
}  // namespace spillway::api_keys_test
