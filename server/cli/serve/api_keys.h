// The keys that `serve` requires of clients: from its settings and from a file. An empty key would
// admit clients that send none, so it is refused from any source. Plain values, any thread.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "server/cli/flags/settings.h"

namespace spillway {

// The setting "api-key": a comma-separated list, hidden in printed settings.
Setting api_key_setting(std::vector<std::string>* field);

// One key a line; blank lines and lines that begin with '#' do not count. At most 1 MiB. Errors
// name `path` and the line: an unreadable file, no key, or a key that no header can carry.
Result<std::vector<std::string>> read_api_key_file(const std::string& path);

}  // namespace spillway
