// Reads a body of type multipart/form-data (RFC 7578) as its bytes arrive, in bounded memory: the
// contents of a part are handed on and not kept. No I/O; one thread.
//
// Invariant: the outcome does not depend on how the bytes were split.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/error.h"

namespace spillway {

struct MultipartLimits {
  size_t parts_max = 32;
  size_t head_bytes_max = 4096;   // Of one part
  size_t value_bytes_max = 4096;  // For callers: a field that is no file
};

// The head of a part.
struct MultipartPart {
  std::string name;                     // Of the field; not empty
  std::optional<std::string> filename;  // As the client calls it: any text, never a path to use
};

// The boundary in a Content-Type; empty when it is no multipart/form-data with a valid one.
std::optional<std::string> multipart_boundary(std::string_view content_type);

class MultipartParser {
 public:
  struct Events {
    std::function<void(const MultipartPart&)> on_part;
    std::function<void(std::string_view)> on_data;  // Of the last part; never empty
    std::function<void()> on_part_end;
  };

  // REQUIRES: a boundary that multipart_boundary() gave.
  MultipartParser(const std::string& boundary, Events events, const MultipartLimits& limits = {});

  // An error ends the parsing: 400 invalid_multipart, which says what is wrong. Nothing may be fed
  // after one.
  std::optional<ApiError> feed(std::string_view bytes);

  // Whether the last boundary was read; bytes behind it are ignored.
  bool complete() const { return state_ == State::kEnd; }
  // The error of a body that ends here.
  std::optional<ApiError> finish() const;

 private:
  enum class State : uint8_t { kPreamble, kBoundary, kHead, kData, kEnd };

  bool skip_or_emit();  // False: more bytes are needed
  std::optional<ApiError> read_boundary(bool* more);
  std::optional<ApiError> read_head(bool* more);

  const std::string delimiter_;  // "\r\n--" and the boundary
  const Events events_;
  const MultipartLimits limits_;
  State state_ = State::kPreamble;
  std::string buffer_;
  bool in_part_ = false;
  size_t parts_ = 0;
};

}  // namespace spillway
