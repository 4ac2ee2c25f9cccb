// The body of an answer that is too large to be held: a file. It is sent as fast as the client
// takes it.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/status.h"

namespace spillway {

class BodySource {
 public:
  virtual ~BodySource() = default;

  virtual uint64_t bytes() const = 0;  // Of the whole body; constant

  // The next piece, empty at the end. On a worker thread, one call at a time; may block for the
  // disk. An error cuts the connection, so that no client takes what it has for the whole.
  virtual Result<std::string> next() = 0;
};

}  // namespace spillway
