// The command line: the commands, their arguments and settings, and the dispatch of a call. main()
// fills the list; nothing here depends on a command's work. One thread.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/cli/flags/settings.h"

namespace spillway {

// A positional value such as MODEL.
struct Argument {
  std::string name;  // "MODEL"
  std::string help;
  std::string* field = nullptr;
  bool optional = false;                // The command's check decides when it may be missing
  std::vector<std::string> words = {};  // Its possible values, for completions; none: a file
};

struct Command {
  std::string name;         // "batch"
  std::string alias;        // Another name that runs it: "run-batch"; empty: none
  std::string summary;      // One line in `spillway --help`
  std::string description;  // Paragraphs in `spillway batch --help`
  std::string usage;        // Required flags: "--input FILE --output FILE"
  std::vector<Argument> arguments;
  Settings settings;
  // Checks which settings were given, and by what (Setting::source), where that matters. Optional.
  std::function<Status(const Settings&)> check_given;
  std::function<Status()> check;  // Cross-checks of values, before anything runs. Optional.
  std::function<int()> run;       // Returns the exit status.
};

// The command of that name or alias; null: there is none.
const Command* find_command(std::span<const Command> commands, std::string_view name);
// Why there is none, and what may have been meant.
std::string explain_unknown_command(std::span<const Command> commands, std::string_view name);

// The texts of --help (help_text.cc).
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

// The exit status for a status: wrong or missing input 2, infeasible 3, cancelled 130, any other
// error 1.
int exit_status_of(const Status& status);

// Prints "spillway COMMAND: message" on stderr unless the status is OK; returns its exit status.
int report(std::string_view command, const Status& status);

// What a command opened of its input, where damaged bytes are bad input (2). Those that a disk
// gives later, while the command runs, are a fault of the machine (1).
template <class T>
Result<T> as_input(Result<T> opened) {
  if (opened.status().code() != Code::kCorruption) return opened;
  return invalid_argument(std::string(opened.status().message()));
}

// Like report(), for a command whose input is a model's files: corrupt bytes are bad input (2)
// there.
int report_input(std::string_view command, const Status& status);

// Parses the line, resolves the settings (flag, environment, --config file, default) and runs the
// command; or prints help, version, configuration or a one-line reason. Returns the exit status.
// `environment` is getenv or a test's stand-in. `warnings` go to the log, once the check of the
// command has set its format.
int run_command_line(std::span<Command> commands, int count, const char* const* arguments,
                     const std::function<const char*(const char*)>& environment,
                     std::span<const std::string> warnings = {});

}  // namespace spillway
