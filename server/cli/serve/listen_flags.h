// Where `serve` listens, and by which names it may be asked: the flags, their checks, and the
// listeners that they describe. Plain values; main thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "server/cli/flags/settings.h"
#include "server/http/listener.h"

namespace spillway {

struct ListenFlags {
  std::string host = "127.0.0.1";
  int64_t port = 8000;  // 0: any free port
  bool tcp = true;      // False: the Unix socket alone
  std::string socket;   // Path of a Unix socket; empty: none
  mode_t socket_mode = 0600;
  std::vector<std::string> allowed_hosts;    // Names that requests may ask for beside `host`
  std::vector<std::string> allowed_origins;  // Web origins that may send requests, "*": all
};

// `flags` outlives the settings.
void add_listen_flags(Settings& settings, ListenFlags* flags);

// Checks the flags by themselves.
Status validate(const ListenFlags& flags);

// Sets `tcp`: a Unix socket stands alone unless a port was given, too. Refuses a host that nothing
// listens on.
Status settle(const Settings& given, ListenFlags* flags);

// Binds what the flags name, the TCP address first. Errors name the flag to change.
Result<std::vector<HttpListener>> open_listeners(const ListenFlags& flags);

}  // namespace spillway
