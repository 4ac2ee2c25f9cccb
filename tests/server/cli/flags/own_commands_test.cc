// help, version and completions as commands.
#include "server/cli/flags/own_commands.h"

#include <catch2/catch.hpp>

#include "server/cli/flags/shell_completions.h"
#include "tests/support/captured_stderr.h"

namespace spillway::own_commands_test {
namespace {

struct Ran {
  int exit = 0;
  std::string out;
};

Ran run(std::vector<const char*> arguments, const std::map<std::string, std::string>& given = {}) {
  int64_t block = 0;
  std::vector<Command> commands(1);
  commands[0].name = "work";
  commands[0].alias = "toil";
  commands[0].summary = "works";
  commands[0].description = "Works hard.";
  commands[0].settings.add_integer("block", &block, 0, 9, "a block");
  commands[0].run = [] { return 7; };
  commands.push_back(help_command(&commands));
  commands.push_back(version_command());
  commands.push_back(completions_command(&commands));
  arguments.insert(arguments.begin(), "spillway");
  Ran ran;
  test::Captured out(stdout);
  ran.exit = run_command_line(commands, static_cast<int>(arguments.size()), arguments.data(),
                              [&](const char* name) -> const char* {
                                const auto found = given.find(name);
                                return found == given.end() ? nullptr : found->second.c_str();
                              });
  ran.out = out.end();
  return ran;
}

TEST_CASE("help prints what --help prints") {
  CHECK(run({"help"}).out == run({"--help"}).out);
  CHECK(run({"help"}).out.find("completions") != std::string::npos);
  CHECK(run({"help", "work"}).out == run({"work", "--help"}).out);
  CHECK(run({"help", "toil"}).out == run({"work", "--help"}).out);
  CHECK(run({"help", "work"}).out.find("toil") != std::string::npos);
  CHECK(run({"help", "work"}).exit == 0);
  CHECK(run({"help", "wrok"}).exit == 2);
  CHECK(run({"help", "help"}).out.find("--config") == std::string::npos);
}

TEST_CASE("a command runs under its other name") {
  CHECK(run({"toil"}).exit == 7);
  CHECK(run({"toil", "--block", "10"}).exit == 2);
}

TEST_CASE("version prints what --version prints") {
  CHECK(run({"version"}).out == run({"--version"}).out);
  CHECK(run({"version", "x"}).exit == 2);
  // A configuration that cannot be read is none of its business.
  CHECK(run({"version"}, {{"SPILLWAY_CONFIG", "/no/such/file"}}).exit == 0);
  CHECK(run({"work"}, {{"SPILLWAY_CONFIG", "/no/such/file"}}).exit == 2);
}

TEST_CASE("completions wants a shell that it knows") {
  const Ran bash = run({"completions", "bash"});
  CHECK(bash.exit == 0);
  CHECK(bash.out.find("complete -F _spillway spillway") != std::string::npos);
  CHECK(run({"completions", "zsh"}).out.starts_with("#compdef spillway"));
  CHECK(run({"completions", "fish"}).out.find("complete -c spillway") != std::string::npos);
  CHECK(run({"completions"}).exit == 2);
  CHECK(run({"completions", "tcsh"}).exit == 2);
}

TEST_CASE("unknown commands and flags are explained") {
  std::vector<Command> commands(1);
  commands[0].name = "serve";
  CHECK(explain_unknown_command(commands, "serv") == "no command 'serv'; did you mean serve?");
  CHECK(explain_unknown_command(commands, "chat").find("spillway generate") != std::string::npos);
  CHECK(explain_unknown_command(commands, "zzzzzz") == "no command 'zzzzzz'");
  CHECK(find_command(commands, "") == nullptr);  // None has an empty alias.
}

}  // namespace
}  // namespace spillway::own_commands_test
