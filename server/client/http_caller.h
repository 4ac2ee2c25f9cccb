// A client of one HTTP server: a call is a connection, a request and its answer. Bodies may be
// larger than memory either way. One thread; calls block, and ask all the while whether to go on.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "server/client/server_address.h"

namespace spillway {

// A body that is made as it is sent.
struct BodyPieces {
  uint64_t bytes = 0;  // Of all pieces together
  // The next piece, not empty until there are as many bytes as promised; its error ends the call.
  std::function<Result<std::string>()> next;
};

struct HttpCall {
  std::string method = "GET";
  std::string path = {};          // "/v1/files"
  std::string content_type = {};  // Of the body; empty: there is none
  std::string body = {};
  std::optional<BodyPieces> pieces = {};  // In place of `body`
  // Takes the body of an answer with status 200 piece by piece; its error ends the call. Empty: the
  // body is held.
  std::function<Status(std::string_view)> take = {};
  bool to_its_end = false;  // Once begun it is not interrupted: half of it would be worse
};

struct HttpReply {
  int status = 0;       // 0: there is no answer, at least not a whole one
  std::string trouble;  // Why not: "connect to 127.0.0.1:8000: Connection refused"
  bool sent = false;    // The request, or a part of it, may have arrived
  std::string body;     // Unless it was taken
  std::optional<int> retry_after_seconds;
  bool retry_is_useless = false;  // The server says that another try ends alike
};

class HttpCaller {
 public:
  struct Options {
    std::string api_key;                // Empty: none is sent. REQUIRES: visible ASCII
    double connect_seconds = 15;        // To each address of the host
    double stall_seconds = 120;         // Without a byte sent or received
    size_t held_bytes_max = 16 << 20;   // Of an answer that is held
    std::function<bool()> interrupted;  // Asked ten times a second; true ends the call
  };

  HttpCaller(ServerAddress address, Options options);

  // Calls once. That the server cannot be reached, or the connection is lost, is a reply without a
  // status; errors are kCancelled (interrupted) and those of `pieces` and `take`.
  Result<HttpReply> call(const HttpCall& call) const;

  const ServerAddress& address() const { return address_; }
  bool interrupted() const { return options_.interrupted && options_.interrupted(); }

 private:
  const ServerAddress address_;
  const Options options_;
};

}  // namespace spillway
