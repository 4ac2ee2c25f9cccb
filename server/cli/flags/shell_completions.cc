#include "server/cli/flags/shell_completions.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace spillway {

namespace {

// What a value is, as far as a shell can complete it.
enum class ValueKind : uint8_t { kNone, kText, kFile, kFolder, kWords };

struct Value {
  ValueKind kind = ValueKind::kText;
  std::string words;  // Separated by blanks
};

// A flag of a command, or one that all have.
struct Flag {
  std::string name;  // Without "--"
  std::string help;
  std::string meaning;
  Value value;
  bool repeats = false;
};

struct Completed {
  const Command* command = nullptr;
  std::vector<std::string> names;  // The command's, and its alias
  std::vector<Flag> flags;
  std::vector<Value> arguments;
};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// From the name of the value in the help: FILE, DIR, auto|cpu|cuda, SIZE|off. Names of values are
// in capitals, values that are words are not.
Value value_of(std::string_view meaning) {
  if (meaning.empty()) return {ValueKind::kNone, ""};
  if (meaning == "DIR") return {ValueKind::kFolder, ""};
  if (meaning == "FILE" || meaning == "PATH" || meaning == "JOURNAL") return {ValueKind::kFile, ""};
  if (meaning.find('|') == std::string_view::npos) return {};
  std::vector<std::string> words;
  for (size_t at = 0; at <= meaning.size();) {
    const size_t end = std::min(meaning.find('|', at), meaning.size());
    const std::string word(meaning.substr(at, end - at));
    const bool lower = std::none_of(word.begin(), word.end(),
                                    [](unsigned char c) { return std::isupper(c) != 0; });
    if (lower && !word.empty()) words.push_back(word);
    at = end + 1;
  }
  return words.empty() ? Value() : Value{ValueKind::kWords, joined(words)};
}

// The beginning of a help text that fits beside a name in a menu.
std::string brief(std::string_view help) {
  constexpr size_t kMost = 72;
  for (const std::string_view end : {"; ", ". ", " ("}) help = help.substr(0, help.find(end));
  if (help.size() > kMost) {
    help = help.substr(0, help.rfind(' ', kMost));
    while (!help.empty() && std::ispunct(static_cast<unsigned char>(help.back())) != 0) {
      help.remove_suffix(1);
    }
    return std::string(help) + " ...";
  }
  return std::string(help);
}

std::vector<Completed> completed(std::span<const Command> commands) {
  std::vector<Completed> all;
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.name);
  for (const Command& command : commands) {
    Completed& one = all.emplace_back();
    one.command = &command;
    one.names = {command.name};
    if (!command.alias.empty()) one.names.push_back(command.alias);
    for (const Setting& setting : command.settings.all()) {
      one.flags.push_back({setting.name, brief(setting.help), setting.meaning,
                           value_of(setting.meaning), setting.repeats});
    }
    if (!one.flags.empty()) {
      one.flags.push_back({"config",
                           "values for any of these flags, by name",
                           "FILE",
                           {ValueKind::kFile, ""},
                           false});
      one.flags.push_back({"print-config",
                           "print every value and where it came from",
                           "",
                           {ValueKind::kNone, ""},
                           false});
    }
    one.flags.push_back({"help", "what the command takes", "", {ValueKind::kNone, ""}, false});
    for (const Argument& argument : command.arguments) {
      if (argument.name == "COMMAND") {
        one.arguments.push_back({ValueKind::kWords, joined(names)});
      } else if (!argument.words.empty()) {
        one.arguments.push_back({ValueKind::kWords, joined(argument.words)});
      } else {
        one.arguments.push_back({ValueKind::kFile, ""});
      }
    }
  }
  return all;
}

// `text` in single quotes, in which a single quote itself cannot stand.
std::string in_single_quotes(std::string_view text, std::string_view quote) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string(quote) : std::string(1, c);
  return out + "'";
}

// ---- bash ---------------------------------------------------------------------------------------

std::string bash_values(const Value& value) {
  switch (value.kind) {
    case ValueKind::kFile:
      return "_spillway_files -f";
    case ValueKind::kFolder:
      return "_spillway_files -d";
    case ValueKind::kWords:
      return "COMPREPLY=($(compgen -W '" + value.words + "' -- \"$cur\"))";
    case ValueKind::kNone:
    case ValueKind::kText:
      break;
  }
  return "COMPREPLY=()";
}

// The flags of one kind of value as a pattern: --input|--output.
void bash_cases(const Completed& one, std::string* out) {
  std::vector<std::pair<std::string, std::string>> cases;  // What is done, and the flags
  for (const Flag& flag : one.flags) {
    if (flag.value.kind == ValueKind::kNone) continue;
    const std::string action = bash_values(flag.value);
    auto found = std::find_if(cases.begin(), cases.end(),
                              [&](const auto& known) { return known.first == action; });
    if (found == cases.end()) {
      cases.emplace_back(action, "");
      found = cases.end() - 1;
    }
    found->second += (found->second.empty() ? "--" : "|--") + flag.name;
  }
  for (const auto& [action, flags] : cases) {
    *out += "        " + flags + ")\n          " + action + "\n          return ;;\n";
  }
}

std::string bash_script(const std::vector<Completed>& all) {
  std::string out =
      "# bash completion of spillway, made by: spillway completions bash\n"
      "_spillway_files() {\n"
      "  compopt -o filenames 2> /dev/null\n"
      "  mapfile -t COMPREPLY < <(compgen \"$1\" -- \"$cur\")\n"
      "}\n\n"
      "_spillway() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local command=${COMP_WORDS[1]} flags\n"
      "  # --flag=value is three words to bash, the second of which is '='.\n"
      "  if [[ $cur == '=' ]]; then\n"
      "    cur=\n"
      "  elif [[ $prev == '=' && $COMP_CWORD -gt 2 ]]; then\n"
      "    prev=${COMP_WORDS[COMP_CWORD-2]}\n"
      "  fi\n"
      "  COMPREPLY=()\n"
      "  if [[ $COMP_CWORD -eq 1 ]]; then\n"
      "    COMPREPLY=($(compgen -W '";
  for (const Completed& one : all) out += joined(one.names) + " ";
  out +=
      "--help --version' -- \"$cur\"))\n"
      "    return\n"
      "  fi\n"
      "  case $command in\n";
  for (const Completed& one : all) {
    std::string names, flags;
    for (const std::string& name : one.names) names += (names.empty() ? "" : "|") + name;
    for (const Flag& flag : one.flags) flags += (flags.empty() ? "--" : " --") + flag.name;
    out += "    " + names + ")\n";
    const bool any_value = std::any_of(one.flags.begin(), one.flags.end(), [](const Flag& flag) {
      return flag.value.kind != ValueKind::kNone;
    });
    if (any_value) {
      out += "      case $prev in\n";
      bash_cases(one, &out);
      out += "      esac\n";
    }
    out += "      flags='" + flags + "'\n      if [[ $cur == -* ]]; then\n" +
           "        COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n";
    if (!one.arguments.empty())
      out += "      else\n        " + bash_values(one.arguments[0]) + "\n";
    out += "      fi ;;\n";
  }
  return out + "  esac\n}\n\ncomplete -F _spillway spillway\n";
}

// ---- zsh ----------------------------------------------------------------------------------------

std::string zsh_values(const Value& value) {
  switch (value.kind) {
    case ValueKind::kFile:
      return "_files";
    case ValueKind::kFolder:
      return "_files -/";
    case ValueKind::kWords:
      return "(" + value.words + ")";
    case ValueKind::kNone:
    case ValueKind::kText:
      break;
  }
  return " ";
}

// In a specification of _arguments brackets and colons end a part.
std::string zsh_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_quoted(const std::string& text) {
  return in_single_quotes(text, "'\\''");
}

std::string zsh_script(const std::vector<Completed>& all) {
  std::string out =
      "#compdef spillway\n"
      "# zsh completion of spillway, made by: spillway completions zsh\n"
      "_spillway() {\n"
      "  local context state state_descr line\n"
      "  typeset -A opt_args\n"
      "  local -a commands\n"
      "  commands=(\n";
  for (const Completed& one : all) {
    for (const std::string& name : one.names) {
      out += "    " + zsh_quoted(name + ":" + brief(one.command->summary)) + "\n";
    }
  }
  out +=
      "  )\n"
      "  _arguments -C '--help[what the program takes]' '--version[the version]' \\\n"
      "    '1:command:->command' '*::argument:->argument' && return\n"
      "  case $state in\n"
      "    command) _describe -t commands 'command' commands ;;\n"
      "    argument)\n"
      "      case $line[1] in\n";
  for (const Completed& one : all) {
    std::string names;
    for (const std::string& name : one.names) names += (names.empty() ? "" : "|") + name;
    out += "        " + names + ")\n          _arguments";
    for (const Flag& flag : one.flags) {
      const bool takes = flag.value.kind != ValueKind::kNone;
      out += " \\\n            " +
             zsh_quoted((flag.repeats ? "*--" : "--") + flag.name + (takes ? "=[" : "[") +
                        zsh_escaped(flag.help) + "]" +
                        (takes ? ":" + zsh_escaped(flag.meaning) + ":" + zsh_values(flag.value)
                               : std::string()));
    }
    for (size_t i = 0; i < one.arguments.size(); ++i) {
      const Argument& argument = one.command->arguments[i];
      out += " \\\n            " +
             zsh_quoted(std::to_string(i + 1) + (argument.optional ? "::" : ":") + argument.name +
                        ":" + zsh_values(one.arguments[i]));
    }
    out += " ;;\n";
  }
  // Loaded as a file of $fpath, the script is the function's body; sourced, it must be made known.
  return out +
         "      esac ;;\n"
         "  esac\n"
         "}\n\n"
         "if [[ ${funcstack[1]-} == _spillway ]]; then\n"
         "  _spillway \"$@\"\n"
         "else\n"
         "  compdef _spillway spillway\n"
         "fi\n";
}

// ---- fish ---------------------------------------------------------------------------------------

std::string fish_quoted(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '\\' ? std::string("\\\\") : std::string(1, c);
  return in_single_quotes(escaped, "\\'");
}

std::string fish_values(const Value& value) {
  switch (value.kind) {
    case ValueKind::kFile:
      return " -r -F";
    case ValueKind::kFolder:
      return " -x -a '(__fish_complete_directories)'";
    case ValueKind::kWords:
      return " -x -a " + fish_quoted(value.words);
    case ValueKind::kText:
      return " -x";
    case ValueKind::kNone:
      break;
  }
  return "";
}

std::string fish_script(const std::vector<Completed>& all) {
  std::string out =
      "# fish completion of spillway, made by: spillway completions fish\n"
      "complete -c spillway -f\n"
      "complete -c spillway -n __fish_use_subcommand -l help -d 'what the program takes'\n"
      "complete -c spillway -n __fish_use_subcommand -l version -d 'the version'\n";
  for (const Completed& one : all) {
    for (const std::string& name : one.names) {
      out += "complete -c spillway -n __fish_use_subcommand -a " + name + " -d " +
             fish_quoted(brief(one.command->summary)) + "\n";
    }
    const std::string behind =
        "complete -c spillway -n '__fish_seen_subcommand_from " + joined(one.names) + "'";
    for (const Value& value : one.arguments) {
      out += behind +
             (value.kind == ValueKind::kWords ? " -a " + fish_quoted(value.words)
                                              : std::string(" -F")) +
             "\n";
    }
    for (const Flag& flag : one.flags) {
      out += behind + " -l " + flag.name + fish_values(flag.value) + " -d " +
             fish_quoted(flag.help) + "\n";
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> shell_names() {
  return {"bash", "zsh", "fish"};
}

std::optional<Shell> shell_of_name(std::string_view name) {
  if (name == "bash") return Shell::kBash;
  if (name == "zsh") return Shell::kZsh;
  if (name == "fish") return Shell::kFish;
  return std::nullopt;
}

std::string completions(std::span<const Command> commands, Shell shell) {
  const std::vector<Completed> all = completed(commands);
  switch (shell) {
    case Shell::kBash:
      return bash_script(all);
    case Shell::kZsh:
      return zsh_script(all);
    case Shell::kFish:
      break;
  }
  return fish_script(all);
}

}  // namespace spillway
