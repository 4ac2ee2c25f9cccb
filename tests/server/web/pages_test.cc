// The dashboard's files as the server gives them.
#include "server/web/pages.h"

#include <catch2/catch.hpp>
#include <regex>

#include "tests/server/api/api_support.h"

namespace spillway::pages_test {
namespace {

TEST_CASE("the page needs no key and nothing of another server") {
  TestServer test;
  Access access;
  access.api_keys = {"secret"};
  Router router = make_router(test.api, access);
  add_page_routes(router);
  const auto server = HttpServer::start("127.0.0.1", 0, HttpLimits(), std::move(router)).value();
  const std::pair<const char*, const char*> pages[] = {
      {"/", "text/html; charset=utf-8"},
      {"/dashboard.css", "text/css; charset=utf-8"},
      {"/dashboard.js", "text/javascript; charset=utf-8"}};
  for (const auto& [path, type] : pages) {
    INFO(path);
    const HttpAnswer answer = HttpClient(server->port()).get(path);
    CHECK(answer.status == 200);
    CHECK(answer.fields.at("content-type") == type);
    CHECK(answer.fields.at("x-content-type-options") == "nosniff");
    CHECK_THAT(answer.fields.at("content-security-policy"), Catch::Contains("default-src 'none'"));
    CHECK(answer.body.size() > 1000);
    // The name of SVG's namespace is no address.
    const std::regex foreign("(https?:)?//(?!www\\.w3\\.org/2000/svg)[a-z]", std::regex::icase);
    std::smatch found;
    std::string body = answer.body;
    if (std::string(path) == "/dashboard.js") {
      body = std::regex_replace(body, std::regex("(^|\n) *//[^\n]*"), "\n");  // Comments
      CHECK(body.find("innerHTML") == std::string::npos);
    }
    CHECK_FALSE(std::regex_search(body, found, foreign));
  }
  const std::string html = HttpClient(server->port()).get("/").body;
  CHECK(html.find("<script>") == std::string::npos);  // The policy allows none within the page.
  CHECK(html.find(" style=") == std::string::npos);
  CHECK(html.find(" onclick=") == std::string::npos);
  CHECK(HttpClient(server->port()).get("/v1/models").status == 401);
  server->stop();
}

}  // namespace
}  // namespace spillway::pages_test
