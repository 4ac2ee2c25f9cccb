// The keys that `serve` requires of clients: from its settings and from a file. An empty key would
// admit clients that send none, so it is refused from any source. Plain values, any thread.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "server/cli/flags/settings.h"
#include "server/http/key_limits.h"

namespace spillway {

// The setting "api-key": a comma-separated list, hidden in printed settings.
Setting api_key_setting(std::vector<std::string>* field);

struct ApiKey {
  std::string key;
  KeyLimits limits;
};

// One key a line; blank lines and lines that begin with '#' do not count. Behind a key, and a
// blank, there may be limits of its own:
//
//   KEY name=team-a priority=-5..10 slots=8 tokens-per-minute=100000 connections=4
//
// Either end of a priority's range may be left out. At most 1 MiB. Errors name `path` and the line,
// never its text, which may be a part of a key: an unreadable file, no key, a key that no header
// can carry, or a limit that is none.
Result<std::vector<ApiKey>> read_api_key_file(const std::string& path);

}  // namespace spillway
