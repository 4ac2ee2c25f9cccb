// The table of routes, and the checks before a handler sees a request or a byte of its body is
// read: missing access, unknown paths, wrong methods, foreign content types. Immutable once
// serving; any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/http/access.h"
#include "server/http/body_sink.h"
#include "server/http/exchange.h"
#include "server/http/message.h"

namespace spillway {

using Handler = std::function<void(HttpRequest, ExchangePtr)>;

struct Route {
  std::string method;
  std::string path;  // A segment "{}" matches any one non-empty segment, "{*}" all that follow
  Handler handler;
  bool json_body = false;  // Other types and encodings are 415. False: only short bodies are read
  bool open = false;       // Needs no key and answers while draining
  BodySinkFactory sink = {};  // Bodies go there, of up to HttpLimits::upload_bytes_max
};

class Router {
 public:
  explicit Router(Access access = {});

  void add(Route route) { routes_.push_back(std::move(route)); }
  const std::vector<Route>& routes() const { return routes_; }
  // What all other paths are answered, in place of 404.
  void answer_other_paths(std::function<HttpResponse()> answer) {
    other_paths_ = std::move(answer);
  }

  // Finds the route of a request from its head, and fills in request.parameters (%-decoded); or
  // returns the answer that refuses it. HEAD takes the route of GET.
  std::variant<const Route*, HttpResponse> find(HttpRequest& request) const;

  const Access& access() const { return access_; }

 private:
  std::vector<Route> routes_;
  std::function<HttpResponse()> other_paths_;  // Empty: 404
  Access access_;
};

}  // namespace spillway
