// Every route of files and batches says why there are none, whatever is sent there.
#include "server/batches/batch_unavailable.h"

#include <catch2/catch.hpp>

#include "tests/server/api/check_error.h"

namespace spillway::batch_unavailable_test {
namespace {

TEST_CASE("routes of files and batches that cannot be had say so") {
  Router routes;
  add_unavailable_batch_routes(routes);
  TestServer::Options options;
  options.routes = routes.routes();
  TestServer test(options);
  const auto check = [](const HttpAnswer& answer) {
    test::check_error(answer, 503, "unavailable_error", "batches_unavailable");
    CHECK(answer.fields.at("x-should-retry") == "false");
    CHECK(answer.body.find("--batch-dir") != std::string::npos);
  };
  for (const char* path : {"/v1/files", "/v1/files/file-1", "/v1/files/file-1/content",
                           "/v1/files?limit=3", "/v1/batches", "/v1/batches/batch_1"}) {
    INFO(path);
    check(HttpClient(test.server->port()).get(path));
  }
  check(test.post("/v1/batches", {{"input_file_id", "file-1"}}));
  check(test.post("/v1/batches/batch_1/cancel", Json::object()));
  // More than any route without a file takes.
  check(HttpClient(test.server->port()).post("/v1/files", std::string(1 << 20, 'x')));
  CHECK(HttpClient(test.server->port()).get("/v1/models").status == 200);
}

}  // namespace
}  // namespace spillway::batch_unavailable_test
