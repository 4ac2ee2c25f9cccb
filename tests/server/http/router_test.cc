// What a browser is told before a web page's request.
#include "server/http/router.h"

#include <catch2/catch.hpp>

#include "tests/server/api/api_support.h"

namespace spillway::router_test {
namespace {

TEST_CASE("a web page of an allowed site may send the fields it asks for") {
  TestServer::Options options;
  options.access.allowed_origins = {"https://ui.example"};
  TestServer test(options);
  HttpClient client(test.server->port());
  const auto allowed = [&](const std::string& names) {
    client.send(
        "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: a\r\nOrigin: https://ui.example\r\n"
        "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: " +
        names + "\r\n\r\n");
    const HttpAnswer answer = client.read_answer();
    CHECK(answer.status == 200);
    return answer.fields.at("access-control-allow-headers");
  };
  const std::string usual = "authorization, content-type, x-request-id";
  for (const std::string& names : {std::string("authorization,content-type,x-stainless-os"),
                                   std::string("x-a , X_b"), std::string(1024, 'x')}) {
    CHECK(allowed(names) == names);
  }
  for (const std::string& names :
       {std::string(), std::string(1025, 'x'), std::string("a,"), std::string(",a"),
        std::string("a,,b"), std::string("a b"), std::string("a: b"), std::string("a\tb"),
        std::string("a\x80")}) {
    INFO(names);
    CHECK(allowed(names) == usual);
  }
}

}  // namespace
}  // namespace spillway::router_test
