// Access control: API keys, and the rights of other sites' web pages. Immutable once serving; any
// thread.
//
// A browser lets any page send a request to any address that it reaches, this machine's own
// included, and a page can make its own name resolve to that address later (DNS rebinding): to the
// browser it then asks its own server, and may read the answers. A server with API keys is safe
// from both, as no browser adds a key by itself and a foreign page has none. One without keys
// answers only to names that no foreign page can have, and only pages of its own address and those
// of allowed_origins.
#pragma once

#include <cstddef>
#include <cstdint>
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
  // Without keys, refuses requests whose Host is neither an IP address, nor localhost or a name
  // below it, nor one of the names that follow. Which address is listened on makes no difference:
  // a browser reaches 0.0.0.0 as it reaches 127.0.0.1, and addresses of its local network.
  bool known_names_only = false;
  std::string host;                             // --host
  std::vector<std::string> allowed_hosts = {};  // Names without a port; "*": any
  std::vector<KeyLimits> key_limits = {};       // Of the first of api_keys, in their order

  // The error for a request that is refused; none if it is allowed. Not for routes open to all.
  std::optional<ApiError> refuse(const HttpRequest& request) const;

  // The number of the key in the request, from 1; 0: none of them.
  size_t key_of(const HttpRequest& request) const;

  // What the log calls that key: its name in the key file, else "key-1". Empty for 0.
  std::string key_name(uint64_t number) const;
  // Of a key's number as key_of() gives it.
  const KeyLimits& limits_of(uint64_t api_key) const;

  // Fields that let a page of an allowed origin read the answer; none for other requests.
  HttpFields cors_fields(const HttpRequest& request) const;

  bool allows_origin(std::string_view origin) const;

  // Whether the Host of a request ("example.org:8000", "[::1]") is a name of this server. An empty
  // one is: HTTP/1.0 may lack it, and no browser leaves it out.
  bool knows_host(std::string_view host_field) const;
};

// Compares in time that does not depend on the contents.
bool equal_in_constant_time(std::string_view a, std::string_view b);

// ASCII letters only.
std::string lower_case(std::string_view text);

// Without the spaces and tabs at its ends.
std::string_view trimmed(std::string_view text);

}  // namespace spillway
