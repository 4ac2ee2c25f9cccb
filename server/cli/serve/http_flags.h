// The flags of `serve` for the limits of its HTTP server, and for the reverse proxies in front of
// it. Plain values, any thread.
#pragma once

#include "server/cli/flags/settings.h"
#include "server/http/limits.h"

namespace spillway {

// A setting for each limit that no other flag decides: the memory of bodies follows from
// --body-bytes-max, since it is a part of --host-memory, and that of uploads from --file-bytes-max.
// `limits` outlives the settings.
void add_http_flags(Settings& settings, HttpLimits* limits);

// What --connections-per-client-max asks for must be possible in total, unless --connections-max
// says otherwise.
void raise_connections_max(HttpLimits* limits);

}  // namespace spillway
