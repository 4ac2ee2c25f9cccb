#include "server/cli/serve/log_flags.h"

#include <algorithm>
#include <vector>

#include "server/log.h"

namespace spillway {

namespace {

const std::vector<std::string> kLogFormats = {"text", "json"};                   // By LogFormat
const std::vector<std::string> kLevels = {"debug", "info", "warning", "error"};  // By LogLevel

template <class Value>
Value value_of(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<Value>(std::find(names.begin(), names.end(), name) - names.begin());
}

}  // namespace

void add_log_flags(Settings& settings, LogFlags* flags) {
  settings.add_choice("log-format", &flags->format, kLogFormats,
                      "lines of the log, on stderr: for people, or an object a line");
  settings.add_choice("log-level", &flags->level, kLevels,
                      "the least level of its lines; debug: also health checks and scrapes of "
                      "/metrics; warning: no line for each request");
}

void apply(const LogFlags& flags) {
  set_log(value_of<LogFormat>(kLogFormats, flags.format), value_of<LogLevel>(kLevels, flags.level));
}

}  // namespace spillway
