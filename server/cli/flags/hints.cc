#include "server/cli/flags/hints.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "server/cli/flags/foreign_names.h"

namespace spillway {

namespace {

// Variables that set something other than a command's flag: the configuration file, two folders
// (offload/config_files.h, offload/model_source.h), what builds and tests are told.
constexpr std::string_view kNotFlags[] = {
    "SPILLWAY_CONFIG",  "SPILLWAY_CONFIGS",         "SPILLWAY_CACHE",
    "SPILLWAY_CUDA",    "SPILLWAY_TEST_CUDA",       "SPILLWAY_CUDA_TESTS",
    "SPILLWAY_PROGRAM", "SPILLWAY_SOURCE",          "SPILLWAY_BINARY",
    "SPILLWAY_WERROR",  "SPILLWAY_TEST_SEED",       "SPILLWAY_EMULATION_SEED",
    "SPILLWAY_SHARED",  "SPILLWAY_SANITIZER_FLAGS", "SPILLWAY_PTXAS_VERBOSE"};

// Levenshtein distance.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// Of a Service of the name spillway (or spillway-NAME) in the same namespace:
// SPILLWAY_SERVICE_HOST, SPILLWAY_SERVICE_PORT_HTTP, SPILLWAY_PORT_8000_TCP_ADDR.
bool is_of_kubernetes(std::string_view name) {
  return name.ends_with("_SERVICE_HOST") || name.find("_SERVICE_PORT") != std::string_view::npos ||
         name.find("_TCP_ADDR") != std::string_view::npos ||
         name.find("_TCP_P") != std::string_view::npos || name.ends_with("_TCP");
}

// "SPILLWAY_MAX_NUM_SEQS" -> "--max-num-seqs"
std::string flag_of(std::string_view variable, std::string_view prefix) {
  std::string flag = "--";
  for (const char c : variable.substr(prefix.size())) {
    flag += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return flag;
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  // Farther is another word: two edits, in a long one three.
  size_t best_edits = std::min<size_t>(word.size() > 20 ? 4 : 3, word.size() / 2 + 1);
  for (const std::string& candidate : candidates) {
    if (const size_t distance = edits(word.substr(0, 64), candidate); distance < best_edits) {
      best_edits = distance;
      best = candidate;
    }
  }
  return best;
}

std::vector<std::string> unknown_variables(std::span<const Command> commands,
                                           const char* const* environment) {
  constexpr std::string_view kPrefix = "SPILLWAY_";
  std::vector<std::string> known(std::begin(kNotFlags), std::end(kNotFlags));
  for (const Command& command : commands) {
    for (const Setting& setting : command.settings.all()) {
      known.push_back(setting.environment_name());
    }
  }
  std::vector<std::string> sentences;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string name(entry.substr(0, std::min(entry.find('='), size_t{128})));
    if (!name.starts_with(kPrefix) || is_of_kubernetes(name)) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string hint = foreign_flag_hint(flag_of(name, kPrefix));
    const std::string meant = hint.empty() ? nearest(name, known) : "";
    sentences.push_back(name + " sets nothing; " +
                        (!hint.empty()    ? hint
                         : !meant.empty() ? "did you mean " + meant + "?"
                                          : "no flag of any command has that name"));
  }
  return sentences;
}

}  // namespace spillway
