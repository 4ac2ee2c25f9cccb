#include "server/cli/flags/own_commands.h"

#include <cstdio>
#include <memory>

#include "kernels/base/quote.h"
#include "server/cli/flags/shell_completions.h"

namespace spillway {

namespace {

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

Command help_command(const std::vector<Command>* commands) {
  auto name = std::make_shared<std::string>();
  Command command;
  command.name = "help";
  command.summary = "what the program, or a command, takes";
  command.description = "Prints what --help behind the command prints.";
  command.arguments = {{"COMMAND", "a command; without one all are listed", name.get(), true}};
  command.run = [commands, name] {
    if (name->empty()) {
      print(program_help(*commands));
      return static_cast<int>(kExitSuccess);
    }
    if (const Command* found = find_command(*commands, *name); found != nullptr) {
      print(command_help(*found));
      return static_cast<int>(kExitSuccess);
    }
    return report("help", invalid_argument(explain_unknown_command(*commands, *name)));
  };
  return command;
}

Command version_command() {
  Command command;
  command.name = "version";
  command.summary = "the version";
  command.description = "Prints what --version prints.";
  command.run = [] {
    print("spillway " SPILLWAY_VERSION "\n");
    return static_cast<int>(kExitSuccess);
  };
  return command;
}

Command completions_command(const std::vector<Command>* commands) {
  auto shell = std::make_shared<std::string>();
  Command command;
  command.name = "completions";
  command.summary = "a script for bash, zsh or fish that completes commands and flags";
  command.description =
      "Prints a script that tells a shell how to complete spillway's commands, flags and values. "
      "bash: spillway completions bash > ~/.local/share/bash-completion/completions/spillway. "
      "zsh: spillway completions zsh > DIR/_spillway, where DIR is one of $fpath. "
      "fish: spillway completions fish > ~/.config/fish/completions/spillway.fish.";
  command.arguments = {{"SHELL", "bash, zsh or fish", shell.get(), false, shell_names()}};
  command.check = [shell]() -> Status {
    if (shell_of_name(*shell)) return {};
    return invalid_argument(in_quotes(*shell) + " is none of bash, zsh and fish");
  };
  command.run = [commands, shell] {
    print(completions(*commands, *shell_of_name(*shell)));
    return static_cast<int>(kExitSuccess);
  };
  return command;
}

}  // namespace spillway
