// Takes a request's body as it arrives, for routes whose bodies are too large to be held: a file.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "server/http/message.h"

namespace spillway {

class BodySink {
 public:
  virtual ~BodySink() = default;

  // The next bytes of the body. On a worker thread, one call at a time; may block for the disk, and
  // nothing more is read from the client meanwhile. An error ends the request.
  virtual std::optional<ApiError> write(std::string_view bytes) = 0;
};

// Makes the sink of a request from its head, or refuses it. On the network thread: must not block.
using BodySinkFactory =
    std::function<std::variant<std::shared_ptr<BodySink>, ApiError>(const HttpRequest& head)>;

}  // namespace spillway
