// What a socket's other end is called, over every kind of socket.
#include "server/http/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <type_traits>

#include "tests/support/skip.h"

namespace spillway::socket_test {
namespace {

struct Fd {
  explicit Fd(int given) : fd(given) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd >= 0) ::close(fd);
  }
  int fd;
};

// A client connected to a listener on every address of the family; the server's end of it.
template <class Address>
int accepted(const Fd& listener, const Fd& client, const Address& local, const Address& to) {
  Address bound = local;
  socklen_t bytes = sizeof bound;
  if (::bind(listener.fd, reinterpret_cast<const sockaddr*>(&local), sizeof local) != 0 ||
      ::listen(listener.fd, 1) != 0 ||
      ::getsockname(listener.fd, reinterpret_cast<sockaddr*>(&bound), &bytes) != 0) {
    return -1;
  }
  Address target = to;
  if constexpr (std::is_same_v<Address, sockaddr_in6>) {
    target.sin6_port = bound.sin6_port;
  } else {
    target.sin_port = bound.sin_port;
  }
  if (::connect(client.fd, reinterpret_cast<const sockaddr*>(&target), sizeof target) != 0) {
    return -1;
  }
  return ::accept(listener.fd, nullptr, nullptr);
}

TEST_CASE("a peer of IPv4 is its address") {
  const Fd listener(::socket(AF_INET, SOCK_STREAM, 0)), client(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in local{};
  local.sin_family = AF_INET;
  local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const Fd server(accepted(listener, client, local, local));
  REQUIRE(server.fd >= 0);
  CHECK(peer_address(server.fd) == "127.0.0.1");
  probe_when_silent(server.fd, 20);
  const auto option = [&](int name) {
    int value = -1;
    socklen_t bytes = sizeof value;
    REQUIRE(::getsockopt(server.fd, IPPROTO_TCP, name, &value, &bytes) == 0);
    return value;
  };
  CHECK(option(TCP_KEEPIDLE) >= 20);
  CHECK(option(TCP_KEEPIDLE) <= 30);
  CHECK(option(TCP_KEEPCNT) > 1);
  // The socket is given up after its last probe, not after the first one that got lost.
  for (const int seconds : {1, 3, 20, 60}) {
    probe_when_silent(server.fd, seconds);
    CHECK(option(TCP_USER_TIMEOUT) >=
          1000 * (option(TCP_KEEPIDLE) + option(TCP_KEEPCNT) * option(TCP_KEEPINTVL)));
  }
}

TEST_CASE("a peer of IPv6 is its address, and one of IPv4 on such a socket that of IPv4") {
  const Fd listener(::socket(AF_INET6, SOCK_STREAM, 0)), client(::socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 any{}, loopback{}, mapped{};
  any.sin6_family = loopback.sin6_family = mapped.sin6_family = AF_INET6;
  any.sin6_addr = in6addr_any;
  loopback.sin6_addr = in6addr_loopback;
  const int off = 0;
  if (listener.fd < 0 ||
      ::setsockopt(listener.fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) {
    return test::skip("this machine has no IPv6");
  }
  const Fd server(accepted(listener, client, any, loopback));
  if (server.fd < 0) return test::skip("this machine has no IPv6");
  CHECK(peer_address(server.fd) == "::1");

  REQUIRE(::inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr) == 1);
  const Fd second(::socket(AF_INET6, SOCK_STREAM, 0)), other(::socket(AF_INET6, SOCK_STREAM, 0));
  REQUIRE(::setsockopt(second.fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0);
  REQUIRE(::setsockopt(other.fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0);
  const Fd of_v4(accepted(second, other, any, mapped));
  REQUIRE(of_v4.fd >= 0);
  CHECK(peer_address(of_v4.fd) == "127.0.0.1");
}

TEST_CASE("a peer of a Unix socket has no address, and none that has left or never was") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const Fd one(ends[0]), other(ends[1]);
  CHECK(peer_address(one.fd) == "unix");
  probe_when_silent(one.fd, 20);  // Knows none of the options: nothing happens.
  CHECK(peer_address(-1).empty());
}

}  // namespace
}  // namespace spillway::socket_test
