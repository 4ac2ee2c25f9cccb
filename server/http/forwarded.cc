#include "server/http/forwarded.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "kernels/base/quote.h"
#include "server/http/access.h"

namespace spillway {
namespace {

constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr int kMappedBits = 96;

}  // namespace

std::optional<IpAddress> IpAddress::parse(std::string_view text) {
  const std::string whole(text.substr(0, text.find('%')));  // A zone says by which link it came.
  IpAddress address;
  if (inet_pton(AF_INET6, whole.c_str(), address.bytes.data()) == 1) return address;
  std::copy(kMapped.begin(), kMapped.end(), address.bytes.begin());
  if (whole.size() != text.size()) return {};
  if (inet_pton(AF_INET, whole.c_str(), address.bytes.data() + kMapped.size()) == 1) return address;
  return {};
}

std::optional<IpAddress> IpAddress::parse_with_port(std::string_view text) {
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return {};
    const std::string_view behind = text.substr(end + 1);
    if (!behind.empty() && !behind.starts_with(':')) return {};
    return parse(text.substr(1, end - 1));
  }
  const size_t colon = text.find(':');
  const bool has_port = colon != std::string_view::npos && text.find(':', colon + 1) == text.npos;
  return parse(has_port ? text.substr(0, colon) : text);
}

bool IpAddress::is_v4() const {
  return std::equal(kMapped.begin(), kMapped.end(), bytes.begin());
}

std::string IpAddress::text() const {
  char text[INET6_ADDRSTRLEN] = "";
  const size_t from = is_v4() ? kMapped.size() : 0;
  inet_ntop(is_v4() ? AF_INET : AF_INET6, bytes.data() + from, text, sizeof(text));
  return text;
}

IpAddress IpAddress::client() const {
  IpAddress network = *this;
  if (!is_v4()) std::fill(network.bytes.begin() + 8, network.bytes.end(), uint8_t{0});
  return network;
}

std::string IpAddress::client_key() const {
  const IpAddress network = client();
  return {network.bytes.begin(), network.bytes.end()};
}

Result<IpRange> IpRange::parse(std::string_view text) {
  const size_t slash = text.find('/');
  const auto address = IpAddress::parse(text.substr(0, slash));
  if (!address) {
    return invalid_argument(in_quotes(std::string(text)) +
                            " is no IP address such as 10.0.0.1, nor a range such as 10.0.0.0/8 or "
                            "fd00::/8");
  }
  IpRange range{*address, 128};
  if (slash == std::string_view::npos) return range;
  const std::string_view bits = text.substr(slash + 1);
  const int most = address->is_v4() ? 32 : 128;
  const auto [end, error] = std::from_chars(bits.data(), bits.data() + bits.size(), range.bits);
  if (error != std::errc() || end != bits.data() + bits.size() || range.bits < 0 ||
      range.bits > most) {
    return invalid_argument(in_quotes(std::string(text)) + ": behind '/' must be 0 to " +
                            std::to_string(most) + ", the bits that addresses have in common");
  }
  if (address->is_v4()) range.bits += kMappedBits;
  return range;
}

bool IpRange::contains(const IpAddress& address) const {
  const auto whole = static_cast<size_t>(bits / 8);
  if (std::memcmp(first.bytes.data(), address.bytes.data(), whole) != 0) return false;
  if (bits % 8 == 0) return true;
  const int differ = first.bytes[whole] ^ address.bytes[whole];
  return (differ >> (8 - bits % 8)) == 0;
}

bool TrustedProxies::trust(const std::optional<IpAddress>& peer) const {
  if (!peer) return unix_sockets;
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const IpRange& range) { return range.contains(*peer); });
}

std::optional<IpAddress> client_of(const std::optional<IpAddress>& peer,
                                   std::string_view forwarded_for, const TrustedProxies& trusted) {
  std::optional<IpAddress> client = peer;
  while (trusted.trust(client) && !trimmed(forwarded_for).empty()) {
    const size_t comma = forwarded_for.rfind(',');
    const size_t begin = comma == std::string_view::npos ? 0 : comma + 1;
    const auto before = IpAddress::parse_with_port(trimmed(forwarded_for.substr(begin)));
    if (!before) break;
    client = before;
    forwarded_for = forwarded_for.substr(0, comma == std::string_view::npos ? 0 : comma);
  }
  return client;
}

}  // namespace spillway
