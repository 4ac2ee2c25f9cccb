// Addresses of servers as people write them.
#include "server/client/server_address.h"

#include <catch2/catch.hpp>

namespace spillway::server_address_test {
namespace {

TEST_CASE("addresses of servers are read as people write them") {
  struct Row {
    std::string text, host, port, base;
  };
  for (const Row& row :
       {Row{"http://127.0.0.1:8000", "127.0.0.1", "8000", ""},
        Row{"http://gpu.example.org", "gpu.example.org", "80", ""},
        Row{"gpu:8000", "gpu", "8000", ""}, Row{"[::1]:8000", "[::1]", "8000", ""},
        Row{"http://[fe80::1]", "[fe80::1]", "80", ""}, Row{"http://a:1/", "a", "1", ""},
        Row{"http://a:1/v1", "a", "1", ""}, Row{"http://a:1/v1/", "a", "1", ""},
        Row{"http://a:1/llm", "a", "1", "/llm"}, Row{"http://a:1/llm/v1", "a", "1", "/llm"}}) {
    INFO(row.text);
    const auto address = parse_server_address(row.text);
    REQUIRE(address.ok());
    CHECK(address->host == row.host);
    CHECK(address->port == row.port);
    CHECK(address->base == row.base);
    CHECK(address->socket.empty());
  }
  CHECK(parse_server_address("http://a")->host_field() == "a");
  CHECK(parse_server_address("http://a:81")->host_field() == "a:81");
  for (const char* text : {"unix:/run/s.sock", "unix:///run/s.sock"}) {
    const auto address = parse_server_address(text);
    REQUIRE(address.ok());
    CHECK(address->socket == "/run/s.sock");
    CHECK(address->host_field() == "localhost");
    CHECK(address->local());
  }
  for (const char* text : {"http://127.0.0.1:1", "http://localhost", "[::1]:1", "127.8.9.1:1"}) {
    CHECK(parse_server_address(text)->local());
  }
  for (const char* text : {"http://128.0.0.1", "http://localhost.evil.example"}) {
    CHECK_FALSE(parse_server_address(text)->local());
  }
}

TEST_CASE("what is no address of a server is refused with what to do") {
  for (const char* text : {"", "gpu", "http://", "http://:8000", "http://a:", "http://a:0",
                           "http://a:65536", "http://a:80x", "ftp://a:1", "http://a b:1",
                           "http://a:1/x?y=1", "http://a:1/#x", "http://a:1/x y", "http://[::1:1",
                           "unix:", "unix://", "http://a\r\nX: y:1", "http://[]:1"}) {
    INFO(text);
    CHECK(parse_server_address(text).status().code() == Code::kInvalidArgument);
  }
  const auto message = [](const char* text) {
    return std::string(parse_server_address(text).status().message());
  };
  CHECK_THAT(message("https://a"), Catch::Contains("TLS") && Catch::Contains("ssh -N -L"));
  const std::string secret = message("http://user:secret@a:1");
  CHECK_THAT(secret, Catch::Contains("--api-key-file") && !Catch::Contains("secret"));
}

}  // namespace
}  // namespace spillway::server_address_test
