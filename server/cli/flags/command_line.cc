#include "server/cli/flags/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>

#include "kernels/base/quote.h"
#include "server/cli/flags/foreign_names.h"
#include "server/cli/flags/hints.h"
#include "server/log.h"

namespace spillway {

namespace {

void print(std::FILE* to, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), to);
}

int usage_error(const std::string& command, const std::string& reason) {
  print(stderr, "spillway" + (command.empty() ? "" : " " + command) + ": " + reason +
                    "\nTry 'spillway" + (command.empty() ? "" : " " + command) + " --help'.\n");
  return kExitUsage;
}

// One command as CLI11 parses it: only the texts of its flags.
struct Parsed {
  Command* command = nullptr;
  CLI::App* app = nullptr;
  std::map<std::string, CLI::Option*> options;
  CLI::Option* config = nullptr;
  bool print_config = false;
};

CLI::Option* add_value(CLI::App* app, const std::string& flag, bool repeats) {
  return app->add_option(flag, [](const CLI::results_t&) { return true; })
      ->multi_option_policy(repeats ? CLI::MultiOptionPolicy::TakeAll
                                    : CLI::MultiOptionPolicy::TakeLast)
      ->type_name("value")  // In "--block: 1 required value missing"
      ->allow_extra_args(false);
}

void declare(CLI::App& program, Command& command, Parsed* parsed) {
  parsed->command = &command;
  parsed->app = program.add_subcommand(command.name, command.summary);
  CLI::App* app = parsed->app;
  app->allow_extras();
  if (!command.alias.empty()) app->alias(command.alias);
  for (const Argument& argument : command.arguments) {
    app->add_option(argument.name, *argument.field)->allow_extra_args(false);
  }
  for (const Setting& setting : command.settings.all()) {
    const std::string flag = "--" + setting.name;
    parsed->options[setting.name] =
        setting.is_switch() ? app->add_flag(flag) : add_value(app, flag, setting.repeats);
  }
  if (command.settings.all().empty()) return;
  parsed->config = add_value(app, "--config", false);
  app->add_flag("--print-config", parsed->print_config);
}

std::string joined(const std::vector<std::string>& values) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i) text += (i == 0 ? "" : ",") + values[i];
  return text;
}

// Secrets on the command line are visible to all users of the machine.
void warn_of_secrets(const Command& command) {
  for (const Setting& setting : command.settings.all()) {
    if (!setting.secret || setting.source != SettingSource::kFlag) continue;
    const std::string text =
        setting.exposure ? setting.exposure(setting.value)
                         : "--" + setting.name + " shows in the list of processes (ps); use " +
                               setting.environment_name() + " or --" + setting.name + "-file";
    if (!text.empty()) log_warning(text);
  }
}

void log_warnings(std::span<const std::string> warnings) {
  for (const std::string& warning : warnings) log_warning(warning);
}

std::map<std::string, std::string> flags_of(const Parsed& parsed) {
  std::map<std::string, std::string> flags;
  for (const auto& [name, option] : parsed.options) {
    if (option->count() == 0) continue;
    const Setting& setting = *parsed.command->settings.find(name);
    flags[name] = setting.repeats ? joined(option->results()) : option->results().back();
  }
  return flags;
}

// Why there is no flag `flag` here, and what to use.
std::string explain_unknown_flag(const std::string& flag, const std::vector<std::string>& known) {
  const std::string hint = foreign_flag_hint(flag);
  if (!hint.empty()) return "no flag " + flag + " here; " + hint;
  const std::string meant = nearest(flag, known);
  return "no flag " + flag.substr(0, 64) + (meant.empty() ? "" : "; did you mean " + meant + "?");
}

// Other programs take several words behind one flag (vLLM: --served-model-name A B).
std::string explain_extra_word(const Parsed& parsed) {
  std::string lists;
  for (const auto& [name, option] : parsed.options) {
    if (option->count() == 0 || !parsed.command->settings.find(name)->repeats) continue;
    lists += (lists.empty() ? "--" : ", --") + name;
  }
  const std::string text = "one word too many: " + in_quotes(parsed.app->remaining().front());
  if (lists.empty()) return text;
  return text + "; several values of a flag (" + lists +
         ") have commas between them, or the flag again in front of each";
}

// Explains the words that CLI11 could not assign: all flags among them, a line each, since who
// comes from another program has several.
std::string explain_extras(const Parsed& parsed) {
  constexpr size_t kShown = 16;
  std::vector<std::string> known = {"--config", "--print-config", "--help"};
  for (const auto& [name, option] : parsed.options) known.push_back("--" + name);
  std::vector<std::string> flags;
  for (const std::string& word : parsed.app->remaining()) {
    const std::string flag = word.substr(0, word.find('='));
    const bool seen = std::find(flags.begin(), flags.end(), flag) != flags.end();
    if (flag.starts_with('-') && !seen && flags.size() < kShown) flags.push_back(flag);
  }
  if (flags.empty()) return explain_extra_word(parsed);
  std::string text;
  for (const std::string& flag : flags) {
    text += (text.empty() ? "" : "\n  ") + explain_unknown_flag(flag, known);
  }
  return text;
}

// The command line's first error, or OK.
Status check_words(const Parsed& parsed) {
  if (!parsed.app->remaining().empty()) return invalid_argument(explain_extras(parsed));
  if (parsed.print_config) return {};
  for (const Argument& argument : parsed.command->arguments) {
    if (argument.field->empty() && !argument.optional)
      return invalid_argument(argument.name + " is missing");
  }
  return {};
}

int run_parsed(Parsed& parsed, std::span<Command> commands,
               const std::function<const char*(const char*)>& environment,
               std::span<const std::string> warnings) {
  Command& command = *parsed.command;
  SettingInputs inputs;
  inputs.flags = flags_of(parsed);
  inputs.environment = environment;
  const char* config = environment("SPILLWAY_CONFIG");
  if (config != nullptr) inputs.config_file = config;
  // A command without flags has nothing to read there, and must not fail over it.
  if (parsed.config == nullptr) {
    inputs.config_file.clear();
  } else if (parsed.config->count() > 0) {
    inputs.config_file = parsed.config->results().back();
  }
  inputs.known = [commands](std::string_view name) {
    return std::any_of(commands.begin(), commands.end(),
                       [&](const Command& other) { return other.settings.find(name) != nullptr; });
  };
  Status status = check_words(parsed);
  if (status.ok()) status = resolve(command.settings, inputs);
  const bool runs = status.ok() && !parsed.print_config;
  if (runs && command.check_given) status = command.check_given(command.settings);
  if (runs && status.ok() && command.check) status = command.check();
  // In the log's format, which the check of a command that runs has set; otherwise as text.
  log_warnings(warnings);
  if (!status.ok()) return usage_error(command.name, std::string(status.message()));
  if (parsed.print_config) {
    print(stdout, describe(command.settings));
    return kExitSuccess;
  }
  warn_of_secrets(command);
  return command.run();
}

// Reports a word that is not a command, or a missing one.
int no_command(std::span<const Command> commands, int count, const char* const* arguments) {
  if (count < 2) {
    print(stderr, program_help(commands));
    return kExitUsage;
  }
  return usage_error("", explain_unknown_command(commands, arguments[1]));
}

}  // namespace

const Command* find_command(std::span<const Command> commands, std::string_view name) {
  const auto found = std::find_if(commands.begin(), commands.end(), [&](const Command& command) {
    return !name.empty() && (command.name == name || command.alias == name);
  });
  return found == commands.end() ? nullptr : &*found;
}

std::string explain_unknown_command(std::span<const Command> commands, std::string_view name) {
  const std::string text = "no command " + in_quotes(name);
  if (const std::string hint = foreign_command_hint(name); !hint.empty()) return text + "; " + hint;
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.name);
  const std::string meant = nearest(name, names);
  return text + (meant.empty() ? "" : "; did you mean " + meant + "?");
}

int exit_status_of(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return kExitSuccess;
    case Code::kInvalidArgument:
    case Code::kNotFound:
      return kExitUsage;
    case Code::kInfeasible:
      return kExitInfeasible;
    case Code::kCancelled:
      return kExitInterrupted;
    case Code::kCapacity:
    case Code::kCorruption:
    case Code::kIoError:
    case Code::kDeviceLost:
      return kExitFailure;
  }
  return kExitFailure;
}

int report(std::string_view command, const Status& status) {
  if (!status.ok()) {
    print(stderr, "spillway " + std::string(command) + ": " + std::string(status.message()) + "\n");
  }
  return exit_status_of(status);
}

int report_input(std::string_view command, const Status& status) {
  const int exit_status = report(command, status);
  return status.code() == Code::kCorruption ? kExitUsage : exit_status;
}

int run_command_line(std::span<Command> commands, int count, const char* const* arguments,
                     const std::function<const char*(const char*)>& environment,
                     std::span<const std::string> warnings) {
  CLI::App program;
  program.set_version_flag("--version", std::string("spillway " SPILLWAY_VERSION));
  program.allow_extras();
  // Behind the command a word is no command: `help serve`, or a model in a folder called plan.
  program.require_subcommand(0, 1);
  std::vector<Parsed> parsed(commands.size());
  for (size_t i = 0; i < commands.size(); ++i) declare(program, commands[i], &parsed[i]);
  const auto chosen = [&]() -> Parsed* {
    for (Parsed& one : parsed) {
      if (one.app->parsed()) return &one;
    }
    return nullptr;
  };
  try {
    program.parse(count, arguments);
  } catch (const CLI::CallForHelp&) {
    log_warnings(warnings);
    const Parsed* one = chosen();
    print(stdout, one != nullptr ? command_help(*one->command) : program_help(commands));
    return kExitSuccess;
  } catch (const CLI::CallForVersion&) {
    log_warnings(warnings);
    print(stdout, "spillway " SPILLWAY_VERSION "\n");
    return kExitSuccess;
  } catch (const CLI::ParseError& error) {
    log_warnings(warnings);
    const Parsed* one = chosen();
    return usage_error(one != nullptr ? one->command->name : "", error.what());
  }
  Parsed* one = chosen();
  if (one == nullptr || program.remaining_size() > 0) {
    log_warnings(warnings);
    return no_command(commands, count, arguments);
  }
  return run_parsed(*one, commands, environment, warnings);
}

}  // namespace spillway
