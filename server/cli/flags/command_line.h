// The command line: which commands there are, what they take, and how a call becomes a run.
// main() fills the list; nothing here knows what a command does. One thread.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "server/cli/flags/settings.h"

namespace spillway {

// A value that stands on the line without a flag, such as MODEL.
struct Argument {
  std::string name;  // "MODEL"
  std::string help;
  std::string* field = nullptr;
  bool optional = false;  // The command's own check says when it may be missing
};

struct Command {
  std::string name;         // "batch"
  std::string summary;      // One line in `spillway --help`
  std::string description;  // Paragraphs in `spillway batch --help`
  std::string usage;        // Flags that cannot be left out: "--input FILE --output FILE"
  std::vector<Argument> arguments;
  Settings settings;
  std::function<Status()> check;  // What no single value can show; before anything runs. Optional.
  std::function<int()> run;       // Returns the exit status.
};

// What --help prints (help_text.cc).
std::string program_help(std::span<const Command> commands);
std::string command_help(const Command& command);

// Exit status of the program; docs/USER_GUIDE.md lists them.
enum ExitStatus : int {
  kExitSuccess = 0,
  kExitFailure = 1,
  kExitUsage = 2,
  kExitInfeasible = 3,
  kExitInterrupted = 130,
};

// The exit status that a status stands for: wrong or missing input 2, infeasible 3, cancelled 130,
// any other error 1.
int exit_status_of(const Status& status);

// Prints "spillway COMMAND: message" on stderr unless the status is OK; its exit status.
int report(std::string_view command, const Status& status);

// The same for a command whose input is a model's files: corrupt bytes are bad input (2) there,
// since they are what it was asked to look at.
int report_input(std::string_view command, const Status& status);

// Parses the line, resolves the settings (flag, environment, --config file, default) and runs the
// command; or prints help, version, configuration or a one-line reason. Returns the exit status.
// `environment` is getenv or a test's stand-in.
int run_command_line(std::span<Command> commands, int count, const char* const* arguments,
                     const std::function<const char*(const char*)>& environment);

}  // namespace spillway
