// The HTTP server: listens, keeps the connections within their limits, stops gracefully. One
// network thread and two worker threads of its own. Methods from any thread but those two.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "server/http/limits.h"
#include "server/http/listener.h"
#include "server/http/request_record.h"
#include "server/http/router.h"

namespace spillway {

class HttpServer {
 public:
  // Starts serving on bound addresses. Errors name the one. `observer`: see request_record.h.
  // REQUIRES: at least one.
  static Result<std::unique_ptr<HttpServer>> start(std::vector<HttpListener> listeners,
                                                   const HttpLimits& limits, Router router,
                                                   RequestObserver observer = {});
  static Result<std::unique_ptr<HttpServer>> start(HttpListener listener, const HttpLimits& limits,
                                                   Router router, RequestObserver observer = {});
  // HttpListener::bind and start.
  static Result<std::unique_ptr<HttpServer>> start(const std::string& host, uint16_t port,
                                                   const HttpLimits& limits, Router router,
                                                   RequestObserver observer = {});
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Answers by another table from the next request on, within other limits. Blocks until it does.
  void serve(const HttpLimits& limits, Router router);

  uint16_t port() const;    // The first TCP port; 0: there is none
  std::string url() const;  // The first one: "http://127.0.0.1:8000", "unix:/run/spillway.sock"
  const std::vector<std::string>& urls() const;  // In the order of the listeners

  // Closes idle connections, answers new requests with 503 (open routes excepted), and ends every
  // connection after its answer. Does not block.
  void begin_drain();
  bool draining() const;

  // Waits until every answer is written. False after `seconds`.
  bool wait_quiet(double seconds);

  // Resets what is still open (its clients count as gone) and joins the threads. Idempotent.
  void stop();

 private:
  struct Parts;
  explicit HttpServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace spillway
