// The table of routes and what is refused before a handler sees it: unknown paths, wrong methods,
// missing keys, foreign content types. Immutable once serving; any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/http/exchange.h"
#include "server/http/message.h"

namespace spillway {

using Handler = std::function<void(HttpRequest, ExchangePtr)>;

struct Route {
  std::string method;
  std::string path;  // A segment "{}" matches any one non-empty segment
  Handler handler;
  bool json_body = false;  // Other content types are 415
  bool open = false;       // Needs no key and answers while draining
};

class Router {
 public:
  // `api_keys`: none: everyone may ask. REQUIRES: no key is empty, since that one everybody has.
  explicit Router(std::vector<std::string> api_keys = {});

  void add(Route route) { routes_.push_back(std::move(route)); }
  const std::vector<Route>& routes() const { return routes_; }

  // The route of a request, with request.parameters filled in; or the answer that refuses it.
  std::variant<const Route*, HttpResponse> find(HttpRequest& request) const;

 private:
  bool authorised(const HttpRequest& request) const;

  std::vector<Route> routes_;
  std::vector<std::string> api_keys_;
};

// Compares without telling by its time how much was equal.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace spillway
