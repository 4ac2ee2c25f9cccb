// The keys that `serve` asks clients for: from its settings and from a file. An empty key would let
// everyone in who shows none, so it is refused wherever it comes from. Plain values, any thread.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "server/cli/flags/settings.h"

namespace spillway {

// The setting "api-key": a comma-separated list, hidden in what is printed.
Setting api_key_setting(std::vector<std::string>* field);

// One key a line; blank lines and lines that begin with '#' do not count. At most 1 MiB. Errors,
// which name `path` and the line: it cannot be read, has no key, or one that no header can carry.
Result<std::vector<std::string>> read_api_key_file(const std::string& path);

}  // namespace spillway
