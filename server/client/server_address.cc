#include "server/client/server_address.h"

#include <algorithm>
#include <charconv>

#include "kernels/base/quote.h"

namespace spillway {
namespace {

constexpr std::string_view kHttp = "http://", kHttps = "https://", kUnix = "unix:";

Status refused(const std::string& text, const std::string& why) {
  return invalid_argument(in_quotes(text) + " is no address of a server: " + why +
                          "; such are http://127.0.0.1:8000 and unix:/run/spillway.sock");
}

bool is_port(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port > 0 && port <= 65535;
}

// Of a name or an IPv4 address; one of IPv6 stands in brackets.
bool is_host(std::string_view text) {
  const bool brackets = text.starts_with('[') && text.ends_with(']') && text.size() > 2;
  if (brackets) text = text.substr(1, text.size() - 2);
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || (brackets && (c == ':' || c == '%'));
  });
}

// Of what needs no escaping in the first line of a request.
bool is_path(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; }) &&
         text.find_first_of("?#") == std::string_view::npos;
}

}  // namespace

bool ServerAddress::local() const {
  return !socket.empty() || host == "localhost" || host == "[::1]" || host.starts_with("127.");
}

std::string ServerAddress::host_field() const {
  if (!socket.empty()) return "localhost";
  return port == "80" ? host : host + ":" + port;
}

Result<ServerAddress> parse_server_address(const std::string& text) {
  ServerAddress address;
  address.text = text;
  std::string_view rest = text;
  if (rest.starts_with(kUnix)) {
    rest.remove_prefix(kUnix.size());
    if (rest.starts_with("//")) rest.remove_prefix(2);
    if (rest.empty()) return refused(text, "the path of the Unix socket is missing");
    address.socket = rest;
    return address;
  }
  if (rest.starts_with(kHttps)) {
    return invalid_argument(
        in_quotes(text) +
        " asks for TLS, which is not spoken here; let something on this machine do it, such as: "
        "ssh -N -L 8000:127.0.0.1:8000 HOST, and name http://127.0.0.1:8000");
  }
  const bool scheme = rest.starts_with(kHttp);
  if (scheme) rest.remove_prefix(kHttp.size());
  if (rest.find("://") != std::string_view::npos) return refused(text, "its scheme is not http");
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash);
  std::string_view path = rest.substr(slash);
  if (authority.find('@') != std::string_view::npos) {
    return invalid_argument(
        "an address of a server holds no user and no password; use --api-key-file");
  }
  const size_t bracket = authority.starts_with('[') ? authority.find(']') : 0;
  const size_t colon = authority.find(':', std::min(bracket, authority.size()));
  if (colon == std::string_view::npos && !scheme) return refused(text, "the port is missing");
  address.host = authority.substr(0, colon);
  address.port = colon == std::string_view::npos ? "80" : authority.substr(colon + 1);
  if (!is_host(address.host)) return refused(text, "it names no host");
  if (!is_port(address.port)) return refused(text, "its port is none");
  if (!is_path(path)) return refused(text, "its path has a blank, a '?' or a '#'");
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  while (path.ends_with('/')) path.remove_suffix(1);
  address.base = path;
  return address;
}

}  // namespace spillway
