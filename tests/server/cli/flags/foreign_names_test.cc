// What people from other programs are told, held against the flags and commands that there are.
#include "server/cli/flags/foreign_names.h"

#include <catch2/catch.hpp>
#include <cctype>
#include <fstream>
#include <set>

#include "kernels/base/format.h"
#include "server/cli/batch/batch.h"
#include "server/cli/bench/bench.h"
#include "server/cli/cache/cache.h"
#include "server/cli/convert/convert.h"
#include "server/cli/eval/eval.h"
#include "server/cli/generate/generate.h"
#include "server/cli/inspect/inspect.h"
#include "server/cli/plan/plan.h"
#include "server/cli/profile/profile.h"
#include "server/cli/serve/serve.h"
#include "tests/support/places.h"

namespace spillway::foreign_names_test {
namespace {

std::vector<Command> commands() {
  const OpenModel open = model_opener();
  std::vector<Command> all;
  all.push_back(serve_command(open));
  all.push_back(batch_command(open));
  all.push_back(generate_command(open));
  all.push_back(bench_command());
  all.push_back(eval_command());
  all.push_back(profile_command());
  all.push_back(plan_command());
  all.push_back(convert_command());
  all.push_back(inspect_command());
  all.push_back(cache_command());
  return all;
}

std::set<std::string> flags_of(const std::vector<Command>& all) {
  std::set<std::string> flags = {"--config", "--print-config", "--help", "--version"};
  for (const Command& command : all) {
    for (const Setting& setting : command.settings.all()) flags.insert("--" + setting.name);
  }
  return flags;
}

// The words of `text` that look like long flags.
std::set<std::string> flags_in(const std::string& text) {
  std::set<std::string> flags;
  for (size_t at = 0; (at = text.find("--", at)) != std::string::npos;) {
    const bool begins = at == 0 || std::string(" `(\"'[|").find(text[at - 1]) != std::string::npos;
    size_t end = at + 2;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) != 0 ||
                                 text[end] == '-' || text[end] == '_')) {
      ++end;
    }
    if (begins && end > at + 2) flags.insert(text.substr(at, end - at));
    at = end;
  }
  return flags;
}

TEST_CASE("flags of other servers are answered with ours") {
  CHECK(foreign_flag_hint("--dtype").find("--format") != std::string::npos);
  CHECK(foreign_flag_hint("-ngl").find("--weights") != std::string::npos);
  CHECK(foreign_flag_hint("-tp").find("--gpus") != std::string::npos);
  CHECK(foreign_flag_hint("-pp").find("--stages") != std::string::npos);
  CHECK_THAT(std::string(foreign_flag_hint("-ctk")),
             Catch::EndsWith("--kv-format " + format_names("|", {}, true)));
  CHECK(foreign_flag_hint("--scheduling-policy").find("--priority") != std::string::npos);
  CHECK(foreign_flag_hint("--block").empty());
  CHECK(foreign_flag_hint("").empty());
  CHECK(foreign_command_hint("chat").find("generate") != std::string::npos);
  CHECK(foreign_command_hint("serve").empty());
}

// The tables as they are written, since the functions only answer to names that are known.
TEST_CASE("hints name flags that there are, and answer to names that are none of ours") {
  const std::vector<Command> all = commands();
  const std::set<std::string> ours = flags_of(all);
  std::ifstream in(test::source_directory() + "/server/cli/flags/foreign_names.cc");
  REQUIRE(in.good());
  std::set<std::string> known;
  for (std::string line; std::getline(in, line);) {
    INFO(line);
    if (line.find("#include") != std::string::npos || line.find("//") != std::string::npos)
      continue;
    std::string hint = line;
    if (line.starts_with("    {\"")) {
      const std::string name = line.substr(6, line.find('"', 6) - 6);
      CHECK(known.insert(name).second);
      CHECK_FALSE(ours.contains(name));
      CHECK(find_command(all, name) == nullptr);
      CHECK((name.starts_with('-') ? foreign_flag_hint(name) : foreign_command_hint(name)) != "");
      hint = line.substr(7 + name.size());
    }
    for (const std::string& flag : flags_in(hint)) {
      INFO(flag);
      CHECK(ours.contains(flag));
    }
  }
  CHECK(known.size() > 150);
}

// What is copied out of these files is used as it is.
TEST_CASE("files for deployment use flags that there are") {
  const std::set<std::string> ours = flags_of(commands());
  for (const char* name : {"spillway.service", "Containerfile", "compose.yaml", "README.md"}) {
    INFO(name);
    std::ifstream in(test::source_directory() + "/deploy/" + name);
    REQUIRE(in.good());
    for (std::string line; std::getline(in, line);) {
      if (line.find("spillway") == std::string::npos && line.find("\"--") == std::string::npos) {
        continue;
      }
      INFO(line);
      bool others = false;  // The flags of other programs
      for (const char* program : {"systemctl", "podman", "docker", "useradd", "cmake", "COPY"}) {
        others = others || line.find(program) != std::string::npos;
      }
      if (others) continue;
      for (const std::string& flag : flags_in(line)) {
        INFO(flag);
        CHECK(ours.contains(flag));
      }
    }
  }
}

}  // namespace
}  // namespace spillway::foreign_names_test
