// A TCP address that is bound but not yet listened on, so that `serve` knows before it loads a
// model whether the address is available. Move-only; one thread.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/status.h"

namespace spillway {

class HttpListener {
 public:
  // Binds host and port; `port` 0 picks a free one. Clients are refused until HttpServer::start.
  // Errors name which of the two to change: the host is unknown or no address of this machine
  // (kInvalidArgument), the port is taken or needs privileges (kIoError).
  static Result<HttpListener> bind(const std::string& host, uint16_t port);
  HttpListener(HttpListener&& other) noexcept;
  HttpListener& operator=(HttpListener&& other) = delete;
  ~HttpListener();

  uint16_t port() const { return port_; }
  std::string url() const;  // "http://127.0.0.1:8000"
  bool ipv6() const { return ipv6_; }
  bool loopback() const { return loopback_; }  // Only this machine can reach it.

  // Begins to queue clients. The caller owns the socket from then on.
  Result<int> listen();

 private:
  HttpListener() = default;

  int fd_ = -1;
  uint16_t port_ = 0;
  std::string host_text_;
  bool ipv6_ = false;
  bool loopback_ = false;
};

}  // namespace spillway
