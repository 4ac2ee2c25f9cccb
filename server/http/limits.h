// All limits of the HTTP server. Plain values; tests lower them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/http/forwarded.h"

namespace spillway {

struct HttpLimits {
  size_t header_bytes_max = 8192;  // Request line and fields -> 431
  size_t header_fields_max = 100;  // -> 431
  size_t chunk_extension_bytes_max = 4096;
  size_t body_bytes_max = size_t{8} << 20;     // One body -> 413; serve's: RequestMemory
  size_t bodies_bytes_max = size_t{48} << 20;  // All bodies held at once -> 429; likewise
  size_t upload_bytes_max = 0;                 // A body that goes to a sink -> 413
  double peer_share_of_bodies = 0.5;  // One client's share of bodies_bytes_max; at least one body
  size_t other_body_bytes_max = size_t{64} << 10;  // For a route that takes no body -> 413
  size_t output_bytes_max = size_t{256} << 10;     // Unsent events of one stream; beyond: cut off
  size_t pipelined_bytes_max = size_t{64} << 10;

  double header_seconds_max = 10;  // In total, so that sending a byte a second gains nothing
  double body_window_seconds = 10;
  size_t body_window_bytes_min = size_t{10} << 10;  // Progress required in each window
  double body_seconds_min = 30;                     // A whole body may take this, and as long as
  double body_bytes_per_second_min = 64 << 10;      // its length (the largest, if unknown) at this
  double write_stall_seconds = 30;                  // Without one byte taken by the peer
  double idle_seconds = 75;                         // Between requests
  double half_close_seconds = 0.25;  // Wait for the answer if the client shut its sending side
  double linger_seconds = 2;         // After the last answer: reading on lets the peer see it

  int64_t requests_per_connection_max = 1000;
  int64_t connections_max = 12'000;
  int64_t connections_per_peer_max = 1'024;  // -> 503
  int64_t turned_away_max = 64;  // Connections beyond the limits that get an answer explaining it
  // A silent peer is probed after this, or half as long again, and dropped after as much again;
  // whole seconds
  int64_t probe_seconds = 60;

  // Reverse proxies whose X-Forwarded-For says for which client a request, its connection and its
  // body are counted.
  TrustedProxies trusted_proxies;
};

}  // namespace spillway
