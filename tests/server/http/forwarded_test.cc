// Addresses, ranges of them, and whom X-Forwarded-For names.
#include "server/http/forwarded.h"

#include <catch2/catch.hpp>

namespace spillway::forwarded_test {
namespace {

IpAddress address(std::string_view text) {
  const auto parsed = IpAddress::parse(text);
  INFO(text);
  REQUIRE(parsed);
  return *parsed;
}

TEST_CASE("addresses are read as people and proxies write them") {
  CHECK(address("10.0.0.1") == address("::ffff:10.0.0.1"));
  CHECK(address("10.0.0.1").is_v4());
  CHECK(address("fe80::1%eth0") == address("fe80::1"));
  CHECK_FALSE(address("::1").is_v4());
  CHECK(address("::ffff:10.0.0.1").text() == "10.0.0.1");
  CHECK(address("2001:DB8:0::1").text() == "2001:db8::1");
  for (const char* text :
       {"", "10.0.0", "10.0.0.256", "10.0.0.1%eth0", "::g", "unknown", "_x", " ::1"}) {
    INFO(text);
    CHECK_FALSE(IpAddress::parse(text));
  }
  for (const char* text : {"10.0.0.1", "10.0.0.1:80"}) {
    CHECK(IpAddress::parse_with_port(text) == address("10.0.0.1"));
  }
  for (const char* text : {"2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:80"}) {
    CHECK(IpAddress::parse_with_port(text) == address("2001:db8::1"));
  }
  for (const char* text : {"[::1", "[::1]80", "[]", ":80", "10.0.0.1:80:90"}) {
    INFO(text);
    CHECK_FALSE(IpAddress::parse_with_port(text));
  }
}

TEST_CASE("a client is an IPv4 address, or an IPv6 network of 64 bits") {
  CHECK(address("10.0.0.1").client() == address("10.0.0.1"));
  CHECK(address("2001:db8::1").client() == address("2001:db8:0:0:ffff::").client());
  CHECK_FALSE(address("2001:db8::1").client() == address("2001:db8:0:1::1").client());
  CHECK(address("10.0.0.1").client_key() != address("10.0.0.2").client_key());
  CHECK(address("2001:db8::1").client_key() == address("2001:db8::2").client_key());
}

TEST_CASE("a range has the addresses with the same first bits") {
  const auto range = [](std::string_view text) { return IpRange::parse(text).value(); };
  CHECK(range("10.0.0.1").contains(address("10.0.0.1")));
  CHECK_FALSE(range("10.0.0.1").contains(address("10.0.0.2")));
  CHECK(range("10.0.0.0/8").contains(address("10.255.0.2")));
  CHECK_FALSE(range("10.0.0.0/8").contains(address("11.0.0.0")));
  CHECK(range("192.168.4.0/22").contains(address("192.168.7.255")));
  CHECK_FALSE(range("192.168.4.0/22").contains(address("192.168.8.0")));
  CHECK(range("0.0.0.0/0").contains(address("1.2.3.4")));
  CHECK_FALSE(range("0.0.0.0/0").contains(address("::1")));
  CHECK(range("::/0").contains(address("1.2.3.4")));
  CHECK(range("fd00::/9").contains(address("fd7f::1")));
  CHECK_FALSE(range("fd00::/9").contains(address("fd80::1")));
  for (const char* wrong : {"", "/8", "10.0.0.0/", "10.0.0.0/33", "::/129", "10.0.0.0/-1",
                            "10.0.0.0/8x", "localhost", "10.0.0.0/8/8"}) {
    INFO(wrong);
    const Status status = IpRange::parse(wrong).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(std::string(status.message()).find(wrong) != std::string::npos);
  }
}

TEST_CASE("the client is the last address that no trusted proxy has") {
  TrustedProxies trusted;
  trusted.ranges = {IpRange::parse("127.0.0.1").value(), IpRange::parse("10.0.0.0/8").value()};
  const IpAddress proxy = address("127.0.0.1");
  const auto from = [&](std::string_view field) { return client_of(proxy, field, trusted); };
  CHECK(from("") == proxy);
  CHECK(from("203.0.113.7") == address("203.0.113.7"));
  CHECK(from("203.0.113.7, 10.1.1.1") == address("203.0.113.7"));
  CHECK(from("203.0.113.7:4711 ,10.1.1.1:80") == address("203.0.113.7"));
  // What a client wrote itself stands in front and does not count.
  CHECK(from("198.51.100.1, 203.0.113.7") == address("203.0.113.7"));
  CHECK(from("10.2.2.2, 203.0.113.7, 10.1.1.1") == address("203.0.113.7"));
  CHECK(from("10.2.2.2, 10.1.1.1") == address("10.2.2.2"));
  CHECK(from("203.0.113.7, unknown, 10.1.1.1") == address("10.1.1.1"));
  CHECK(from("203.0.113.7, , 10.1.1.1") == address("10.1.1.1"));
  CHECK(from("nonsense") == proxy);
  // Nobody else is believed.
  const IpAddress other = address("203.0.113.9");
  CHECK(client_of(other, "198.51.100.1", trusted) == other);
  CHECK(client_of(proxy, "198.51.100.1", {}) == proxy);
  CHECK_FALSE(client_of({}, "198.51.100.1", trusted));
  trusted.unix_sockets = true;
  CHECK(client_of({}, "198.51.100.1, 10.0.0.1", trusted) == address("198.51.100.1"));
  CHECK_FALSE(client_of({}, "unknown", trusted));
}

}  // namespace
}  // namespace spillway::forwarded_test
