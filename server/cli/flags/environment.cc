#include "server/cli/flags/environment.h"

#include <algorithm>
#include <string_view>

#include "server/cli/flags/help_text.h"

namespace spillway {

std::vector<std::string> misspelt_variables(std::span<const Command> commands,
                                            const char* const* environment) {
  std::vector<std::string> known = {"SPILLWAY_CONFIG", "SPILLWAY_CONFIGS", "SPILLWAY_CACHE"};
  for (const Command& command : commands) {
    for (const Setting& setting : command.settings.all()) {
      known.push_back(setting.environment_name());
    }
  }
  std::vector<std::string> sentences;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string name(entry.substr(0, entry.find('=')));
    if (!name.starts_with("SPILLWAY_")) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string meant = nearest(name, known);
    if (!meant.empty()) sentences.push_back(name + " sets nothing; did you mean " + meant + "?");
  }
  return sentences;
}

}  // namespace spillway
