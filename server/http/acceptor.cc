#include "server/http/acceptor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <utility>

namespace spillway {
namespace {

using boost::system::error_code;

// Accepted in one go, before other connections get their turn.
constexpr int kAtOnce = 64;

std::string text_of(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(family, address, text, sizeof(text));
  return text;
}

std::string client_of(int fd, const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET) {
    return text_of(AF_INET, &reinterpret_cast<const sockaddr_in&>(peer).sin_addr);
  }
  if (peer.ss_family == AF_INET6) {
    return text_of(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr);
  }
  ucred user{};
  socklen_t size = sizeof(user);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &size) != 0) return "unix";
  return "unix:" + std::to_string(user.uid);
}

}  // namespace

Acceptor::Acceptor(boost::asio::io_context& io, int fd, Taker take_in)
    : socket_(io, fd), pause_(io), take_in_(std::move(take_in)) {
  error_code ignored;
  socket_.non_blocking(true, ignored);  // A client may have left before it is accepted.
}

void Acceptor::start() {
  socket_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [this](const error_code& ec) {
                       if (!ec) accept_waiting();
                     });
}

void Acceptor::close() {
  error_code ignored;
  socket_.close(ignored);
  pause_.cancel();
}

void Acceptor::accept_waiting() {
  for (int i = 0; i < kAtOnce && socket_.is_open(); ++i) {
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    const int fd = ::accept4(socket_.native_handle(), reinterpret_cast<sockaddr*>(&peer), &size,
                             SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      try {
        take_in_(fd, peer.ss_family, client_of(fd, peer));
      } catch (const std::exception&) {
        // Out of memory for this client; others are still accepted.
      }
    } else if (errno == EAGAIN) {
      break;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // Trying again at once would only spin.
      pause_.expires_after(std::chrono::milliseconds(100));
      return pause_.async_wait([this](const error_code& ec) {
        if (!ec && socket_.is_open()) start();
      });
    }  // Otherwise it was one client's fault, who has left.
  }
  if (socket_.is_open()) start();
}

}  // namespace spillway
