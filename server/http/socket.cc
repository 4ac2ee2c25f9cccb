#include "server/http/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace spillway {

void probe_when_silent(int fd, int seconds) {
  const int on = 1;
  const int probes = 4;
  const int interval = std::max(1, seconds / probes);
  // Not all at once: the loopback device drops what thousands of connections ask in one instant.
  const int silence = seconds + std::max(0, fd) % (seconds / 2 + 1);
  // Of the last word from the peer. Were it shorter, one lost probe would end the connection: Linux
  // then ends it at the next probe, not after TCP_KEEPCNT of them.
  const unsigned silent_ms = 1000u * static_cast<unsigned>(silence + probes * interval);
  // If an option is not supported, the deadlines of HttpLimits remain.
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &silence, sizeof silence);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof silent_ms);
}

std::string peer_address(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return "";
  if (address.ss_family == AF_UNIX) return "unix";
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof v4);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
  } else if (address.ss_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address, sizeof v6);
    in_addr v4{};
    std::memcpy(&v4, v6.sin6_addr.s6_addr + 12, sizeof v4);
    // A client of IPv4 on a socket that takes both.
    IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) ? ::inet_ntop(AF_INET, &v4, text, sizeof text)
                                        : ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  }
  return text;
}

}  // namespace spillway
