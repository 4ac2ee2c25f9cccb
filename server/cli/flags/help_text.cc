// The texts of --help.
#include <algorithm>

#include "server/cli/flags/command_line.h"

namespace spillway {

namespace {

constexpr size_t kWidth = 96;
constexpr size_t kHelpColumn = 30;

// Appends `text` word by word, each line but the first behind `indent` blanks; `column` is the
// current column of the first line.
void wrap(std::string_view text, size_t indent, size_t column, std::string* out) {
  size_t at = 0;
  bool first = true;
  while (at < text.size()) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (!first && column + 1 + word.size() > kWidth) {
      *out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      *out += ' ';
      ++column;
    }
    *out += word;
    column += word.size();
    first = false;
    at = end + 1;
  }
  *out += '\n';
}

void entry(const std::string& left, const std::string& help, std::string* out) {
  *out += "  " + left;
  size_t column = 2 + left.size();
  if (column + 2 > kHelpColumn) {
    *out += '\n';
    column = 0;
  }
  *out += std::string(kHelpColumn - column, ' ');
  wrap(help, kHelpColumn, kHelpColumn, out);
}

void settings_help(const Settings& settings, std::string* out) {
  std::string group;
  for (const Setting& setting : settings.all()) {
    if (setting.group != group) {
      group = setting.group;
      *out += "\n" + group + ":\n";
    }
    const bool has_default = !setting.is_switch() && !setting.value.empty();
    std::string help = setting.help;
    if (setting.repeats) help += "; several: with commas between, or the flag again";
    if (has_default) help += " (default: " + setting.value + ")";
    entry("--" + setting.name + (setting.is_switch() ? "" : " " + setting.meaning), help, out);
  }
}

}  // namespace

std::string program_help(std::span<const Command> commands) {
  std::string out =
      "Spillway runs large language models on machines that are too small for them.\n\n"
      "Usage: spillway COMMAND ...\n\nCommands:\n";
  for (const Command& command : commands) entry(command.name, command.summary, &out);
  out += "\n";
  entry("COMMAND --help", "what the command takes", &out);
  entry("--version", "the version", &out);
  return out;
}

std::string command_help(const Command& command) {
  std::string out = "Usage: spillway " + command.name;
  const bool has_flags = !command.settings.all().empty();
  for (const Argument& argument : command.arguments) {
    out += argument.optional ? " [" + argument.name + "]" : " " + argument.name;
  }
  out += (command.usage.empty() ? "" : " " + command.usage) + (has_flags ? " [flags]\n\n" : "\n\n");
  wrap(command.description, 0, 0, &out);
  if (!command.arguments.empty()) out += "\nArguments:\n";
  for (const Argument& argument : command.arguments) entry(argument.name, argument.help, &out);
  if (!command.alias.empty()) out += "\nAnother name: " + command.alias + "\n";
  if (!has_flags) return out;
  settings_help(command.settings, &out);
  out += "\nConfiguration:\n";
  entry("--config FILE", "a JSON object with values for any of these flags, by name", &out);
  entry("--print-config", "print every value and where it came from, and do nothing else", &out);
  out += "\n";
  wrap(
      "Every flag can also be set by an environment variable (--host-memory: "
      "SPILLWAY_HOST_MEMORY). A flag overrides the environment, which overrides the file.",
      0, 0, &out);
  return out;
}

}  // namespace spillway
