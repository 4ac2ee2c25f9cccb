// Access control: API keys, and the rights of other sites' web pages. Immutable once serving; any
// thread.
//
// A browser lets any page send a request to any address that it reaches, this machine's own
// included. A server with API keys is safe from that, as a page has none. One without keys answers
// only pages of its own address, and those of allowed_origins.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/key_limits.h"
#include "server/http/message.h"

namespace spillway {

struct Access {
  std::vector<std::string> api_keys;         // None: no key is required. REQUIRES: none is empty.
  std::vector<std::string> allowed_origins;  // "https://example.org"; "*": any
  // Listening on this machine's own address only: a request whose Host is another machine's name
  // comes from a page whose name was made to resolve to this address (DNS rebinding).
  bool local_names_only = false;
  std::string host;  // --host, which counts as a local name
  std::vector<KeyLimits> key_limits = {};  // Of the first of api_keys, in their order

  // The error for a request that is refused; none if it is allowed. Not for routes open to all.
  std::optional<ApiError> refuse(const HttpRequest& request) const;

  // The number of the key in the request, from 1; 0: none of them.
  size_t key_of(const HttpRequest& request) const;

  // Of a key's number as key_of() gives it.
  const KeyLimits& limits_of(uint64_t api_key) const;

  // Fields that let a page of an allowed origin read the answer; none for other requests.
  HttpFields cors_fields(const HttpRequest& request) const;

  bool allows_origin(std::string_view origin) const;
};

// Compares in time that does not depend on the contents.
bool equal_in_constant_time(std::string_view a, std::string_view b);

// ASCII letters only.
std::string lower_case(std::string_view text);

}  // namespace spillway
