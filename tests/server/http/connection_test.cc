// One connection's life: the order in which its bytes are read, and how long it may say nothing.
#include <catch2/catch.hpp>

#include "tests/server/api/api_support.h"
#include "tests/support/patience.h"

namespace spillway::connection_test {
namespace {

TEST_CASE("line ends alone keep no connection open") {
  TestServer::Options options;
  options.http.idle_seconds = 0.2;
  options.http.header_seconds_max = 1000;
  TestServer test(options);
  for (const char* bytes : {"\r\n", "\r", "\r\n\r\n\r"}) {
    HttpClient client(test.server->port());
    CHECK(client.get("/version").status == 200);
    client.send(bytes);
    CHECK(client.closed_within(test::kPatience));
  }
}

}  // namespace
}  // namespace spillway::connection_test
