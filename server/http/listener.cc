#include "server/http/listener.h"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <utility>

namespace spillway {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kBacklog = 4096;

Status refusal(const error_code& ec, const std::string& host, uint16_t port) {
  const std::string what = "listen on " + host + ":" + std::to_string(port) + ": " + ec.message();
  if (ec == asio::error::address_in_use) return {Code::kIoError, what + "; choose another --port"};
  if (ec == asio::error::access_denied) {
    return {Code::kIoError, what + "; choose a --port of 1024 or more"};
  }
  if (ec == boost::system::errc::address_not_available) {
    return invalid_argument(what + "; --host must be an address of this machine");
  }
  return {Code::kIoError, what};
}

}  // namespace

Result<HttpListener> HttpListener::bind(const std::string& host, uint16_t port) {
  asio::io_context io;
  error_code ec;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, ec);
  if (ec || found.empty()) return invalid_argument("--host " + host + ": " + ec.message());
  const tcp::endpoint endpoint = *found.begin();
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (ec) return refusal(ec, host, port);
  HttpListener listener;
  listener.port_ = acceptor.local_endpoint(ec).port();
  listener.ipv6_ = endpoint.address().is_v6();
  listener.loopback_ = endpoint.address().is_loopback();
  const std::string text = endpoint.address().to_string();
  listener.host_text_ = listener.ipv6_ ? "[" + text + "]" : text;
  listener.fd_ = acceptor.release(ec);
  if (ec) return refusal(ec, host, port);
  return listener;
}

HttpListener::HttpListener(HttpListener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      port_(other.port_),
      host_text_(std::move(other.host_text_)),
      ipv6_(other.ipv6_),
      loopback_(other.loopback_) {}

HttpListener::~HttpListener() {
  if (fd_ >= 0) ::close(fd_);
}

std::string HttpListener::url() const {
  return "http://" + host_text_ + ":" + std::to_string(port_);
}

Result<int> HttpListener::listen() {
  // Another server may have listened first: it, too, had bound the address without listening.
  if (::listen(fd_, kBacklog) != 0) {
    return refusal(error_code(errno, boost::system::system_category()), host_text_, port_);
  }
  return std::exchange(fd_, -1);
}

}  // namespace spillway
