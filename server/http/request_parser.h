// Parses bytes into requests: Boost.Beast's parser behind stricter framing checks. No I/O. Owned by
// one connection, one thread at a time.
//
// Invariants: the outcome does not depend on how the bytes were split; memory is bounded by the
// limits; after an error nothing more is read.
#pragma once

#include <memory>
#include <string_view>

#include "server/http/limits.h"
#include "server/http/message.h"

namespace spillway {

class RequestParser {
 public:
  enum class State : uint8_t { kHeader, kBody, kComplete, kFailed };

  // `limits` outlive the parser, and may change between calls.
  explicit RequestParser(const HttpLimits& limits);
  explicit RequestParser(const HttpLimits&& limits) = delete;
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Takes all bytes; bytes behind a complete request are kept for the next one. Returns the new
  // state.
  State feed(std::string_view bytes);

  State state() const;

  // Whether bytes of the current request were received; line ends in front of it are none.
  bool started() const;

  // Whether the header had `Expect: 100-continue` and no body bytes have come. REQUIRES: kBody.
  bool wants_continue() const;

  // The request without its body. kFailed: where the head itself was refused, only its request_id
  // and whether its method is HEAD, as far as they came; else empty. REQUIRES: not kHeader.
  HttpRequest& head();

  // Bytes of the body that take_body() has not given.
  size_t body_bytes() const;

  // Limits the body of the present request, from here on: kFailed when it is longer, or says so.
  // Nothing limits it before, so this follows the call that has read the head. REQUIRES: kBody or
  // kComplete.
  State limit_body(size_t bytes_max);

  // Sets aside memory for the whole announced length, for a body that stays here to its end.
  // REQUIRES: kBody or kComplete, and limit_body() has accepted the length.
  void reserve_body();

  // The body as far as it is there, which leaves the request. REQUIRES: kBody or kComplete.
  std::string take_body();

  // Bytes that belong to later requests or are not parsed yet.
  size_t waiting_bytes() const;

  // Returns the finished request and moves on to the next one, whose bytes feed("") parses.
  // REQUIRES: kComplete.
  HttpRequest take();

  // Drops the request and reads nothing more, as after an error.
  void abandon();

  // REQUIRES: kFailed.
  const ApiError& error() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace spillway
