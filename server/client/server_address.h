// Where a server is, as people write it. Values, any thread.
#pragma once

#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace spillway {

struct ServerAddress {
  std::string text;    // As it was given, for messages
  std::string host;    // "gpu.example.org", "[::1]"; empty: a Unix socket
  std::string port;    // "8000"
  std::string socket;  // Path of a Unix socket
  std::string base;    // In front of every path, without a slash at its end: "/llm"

  // Whether nothing of what is sent leaves this machine.
  bool local() const;
  // The field Host of a request.
  std::string host_field() const;
};

// Reads "http://host:8000", "http://host/llm", "host:8000", "unix:/run/spillway.sock". A "/v1" at
// the end, as other clients have it in their base URL, is left out. kInvalidArgument: it is none of
// these; of https the message says what to do.
Result<ServerAddress> parse_server_address(const std::string& text);

}  // namespace spillway
