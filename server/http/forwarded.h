// Whose request it is where reverse proxies stand between the client and the server: IP addresses,
// and what trusted proxies say in X-Forwarded-For. Plain values, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

// An IPv6 address; an IPv4 one as the IPv6 address that it is mapped to.
struct IpAddress {
  std::array<uint8_t, 16> bytes{};

  // "10.0.0.1", "::1", "fe80::1%eth0". None: it is no address.
  static std::optional<IpAddress> parse(std::string_view text);
  // As parse(), and as proxies write it: "10.0.0.1:4711", "[::1]", "[::1]:4711".
  static std::optional<IpAddress> parse_with_port(std::string_view text);

  bool is_v4() const;
  std::string text() const;  // "10.0.0.1", "2001:db8::1"

  // The client that the address belongs to: in IPv6 a client has all addresses with the same first
  // 64 bits.
  IpAddress client() const;

  // 16 bytes, equal for the addresses of one client.
  std::string client_key() const;

  friend bool operator==(const IpAddress&, const IpAddress&) = default;
};

// The addresses that share their first bits with one.
struct IpRange {
  IpAddress first;
  int bits = 128;  // Of the IPv6 address

  // "10.0.0.1", "10.0.0.0/8", "fd00::/8". Errors say what is wrong with the text.
  static Result<IpRange> parse(std::string_view text);

  bool contains(const IpAddress& address) const;
};

// The reverse proxies that are believed.
struct TrustedProxies {
  std::vector<IpRange> ranges;
  bool unix_sockets = false;  // Whoever comes over a Unix socket

  // `peer`: of a connection; none: over a Unix socket.
  bool trust(const std::optional<IpAddress>& peer) const;
};

// The client of a request that `peer` sent. Only a trusted peer's X-Forwarded-For counts, since
// anyone can send one: from its end, where the last proxy wrote, to the last address that is no
// trusted proxy. Behind a word that is no address nothing is known, and where all are trusted the
// first one is the client. None: it came over a Unix socket, and no more is known.
std::optional<IpAddress> client_of(const std::optional<IpAddress>& peer,
                                   std::string_view forwarded_for, const TrustedProxies& trusted);

}  // namespace spillway
