// The flags of `serve` about its log: --log-format and --log-level. Plain values, main thread.
#pragma once

#include <string>

#include "server/cli/flags/settings.h"

namespace spillway {

struct LogFlags {
  std::string format = "text";  // text, json
  std::string level = "info";   // debug, info, warning, error
};

void add_log_flags(Settings& settings, LogFlags* flags);

// Has the log written so from now on. REQUIRES: values that the settings take.
void apply(const LogFlags& flags);

}  // namespace spillway
