// Who may ask: API keys, and what web pages of other sites may do. Immutable once serving; any
// thread.
//
// A browser lets any page send a request to any address that it reaches, this machine's own
// included. A server that asks for a key is safe from that, as a page has none. One that asks for
// none answers pages of its own address only, and those of allowed_origins.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.h"

namespace spillway {

struct Access {
  std::vector<std::string> api_keys;         // None: everyone may ask. REQUIRES: none is empty.
  std::vector<std::string> allowed_origins;  // "https://example.org"; "*": any
  // Listening on this machine's own address only: a request whose Host is another machine's name
  // comes from a page that has made its name mean this address (DNS rebinding).
  bool local_names_only = false;
  std::string host;  // --host, which is a local name, too

  // The refusal, if it is one, of a request for a route that is not open to all.
  std::optional<ApiError> refuse(const HttpRequest& request) const;

  // Which of the keys the request shows, from 1; 0: none of them.
  size_t key_of(const HttpRequest& request) const;

  // What lets a page of an allowed origin read the answer; nothing for other requests.
  HttpFields cors_fields(const HttpRequest& request) const;

  bool allows_origin(std::string_view origin) const;
};

// Compares without telling by its time how much was equal.
bool equal_in_constant_time(std::string_view a, std::string_view b);

// ASCII letters only.
std::string lower_case(std::string_view text);

}  // namespace spillway
