// Completions: every command, flag and value is in every script, and the shells can read them.
#include "server/cli/flags/shell_completions.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>

#include "server/cli/batch/batch.h"
#include "server/cli/cache/cache.h"
#include "server/cli/flags/own_commands.h"
#include "server/cli/plan/plan.h"
#include "server/cli/serve/serve.h"
#include "tests/support/places.h"
#include "tests/support/skip.h"
#include "tests/support/temp_directory.h"

namespace spillway::shell_completions_test {
namespace {

// Commands with all kinds of settings and arguments, and help texts that shells could trip over.
struct Table {
  Table() {
    const OpenModel open = model_opener();
    commands.push_back(serve_command(open));
    commands.push_back(batch_command(open));
    commands.push_back(plan_command());
    commands.push_back(cache_command());
    commands.push_back(help_command(&commands));
    commands.push_back(version_command());
    commands.push_back(completions_command(&commands));
    Command odd;
    odd.name = "odd";
    odd.alias = "strange";
    odd.summary = "what's \"odd\": [a] `b` $c \\ and more";
    odd.arguments = {{"WHAT", "it's", &text}};
    odd.settings.add_text("quote", &text, "TEXT", "it's [one]: $HOME \\ `id` \"x\"");
    odd.settings.add_texts("many", &texts, "NAME", "several");
    odd.settings.add_switch("on", &on, "on");
    commands.push_back(std::move(odd));
  }

  std::vector<Command> commands;
  std::string text;
  std::vector<std::string> texts;
  bool on = false;
};

TEST_CASE("completions have every command and every flag") {
  const Table table;
  for (const std::string& name : shell_names()) {
    INFO(name);
    const std::string script = completions(table.commands, *shell_of_name(name));
    const auto has = [&](const std::string& text) {
      INFO(text);
      CHECK(script.find(text) != std::string::npos);
    };
    const std::string before = name == "fish" ? "-l " : "--";
    for (const Command& command : table.commands) {
      has(command.name);
      has(command.alias);
      for (const Setting& setting : command.settings.all()) has(before + setting.name);
    }
    for (const char* value : {"auto cpu cuda", "list prune", "bash zsh fish", "off"}) has(value);
    for (const char* own : {"config", "print-config", "help", "version"}) has(before + own);
  }
  CHECK_FALSE(shell_of_name("tcsh"));
}

TEST_CASE("shells can read their completions") {
  const Table table;
  const TempDirectory folder;
  for (const std::string& shell : shell_names()) {
    const std::string path = folder / ("spillway." + shell);
    std::ofstream(path) << completions(table.commands, *shell_of_name(shell));
    if (test::exit_of("command -v " + shell + " > /dev/null 2>&1") != 0) {
      test::skip("no " + shell + " to read its completions");
      continue;
    }
    INFO(shell);
    CHECK(test::exit_of(shell + " -n " + path) == 0);
  }
}

// What bash offers behind these words, the last of which is being typed.
std::string offered(const std::string& script, const std::vector<std::string>& words) {
  std::string line = "bash --norc --noprofile -c 'source " + script + "; COMP_WORDS=(";
  for (const std::string& word : words) line += "\"" + word + "\" ";
  line += "); COMP_CWORD=" + std::to_string(words.size() - 1) +
          "; _spillway; echo \"${COMPREPLY[*]}\"' 2> /dev/null";
  std::FILE* pipe = ::popen(line.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string out;
  char bytes[4096];
  while (std::fgets(bytes, sizeof(bytes), pipe) != nullptr) out += bytes;
  ::pclose(pipe);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

TEST_CASE("bash completes commands, flags, values, files and folders") {
  if (test::exit_of("command -v bash > /dev/null 2>&1") != 0) return test::skip("no bash");
  const Table table;
  const TempDirectory folder;
  const std::string script = folder / "script";
  std::ofstream(script) << completions(table.commands, Shell::kBash);
  std::ofstream(folder / "a file.gguf") << "";
  CHECK(offered(script, {"spillway", "se"}) == "serve");
  CHECK(offered(script, {"spillway", "run-"}) == "run-batch");
  CHECK(offered(script, {"spillway", "serve", "--allowed-h"}) == "--allowed-host");
  CHECK(offered(script, {"spillway", "run-batch", "--inp"}) == "--input");
  CHECK(offered(script, {"spillway", "serve", "--device", ""}) == "auto cpu cuda");
  CHECK(offered(script, {"spillway", "serve", "--device", "=", "cu"}) == "cuda");
  CHECK(offered(script, {"spillway", "serve", "--device", "="}) == "auto cpu cuda");
  CHECK(offered(script, {"spillway", "serve", "--prefix-cache", ""}) == "off");
  CHECK(offered(script, {"spillway", "serve", "--port", ""}).empty());
  CHECK(offered(script, {"spillway", "serve", folder.path() + "/a"}) == folder / "a file.gguf");
  CHECK(offered(script, {"spillway", "batch", "--input", folder.path() + "/a"}) ==
        folder / "a file.gguf");
  CHECK(offered(script, {"spillway", "serve", "--disk-dir", folder.path() + "/a"}).empty());
  CHECK(offered(script, {"spillway", "cache", "p"}) == "prune");
  CHECK(offered(script, {"spillway", "help", "ca"}) == "cache");
  CHECK(offered(script, {"spillway", "completions", ""}) == "bash zsh fish");
  CHECK(offered(script, {"spillway", "strange", "--q"}) == "--quote");
  CHECK(offered(script, {"spillway", "nothing", "--q"}).empty());
}

}  // namespace
}  // namespace spillway::shell_completions_test
