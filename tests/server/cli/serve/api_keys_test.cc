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
  CHECK(read("# of the team\none\r\n\n  \ntwo").value() == std::vector<std::string>{"one", "two"});
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
