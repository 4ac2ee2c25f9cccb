// The counts of answers by route and status, and of refusals by reason.
#include "server/http/http_counts.h"

#include <catch2/catch.hpp>

namespace spillway::http_counts_test {
namespace {

RequestReport report(const char* method, const char* route, int status, const char* error = "") {
  RequestReport made;
  made.method = method;
  made.route = route;
  made.path = "/whatever/somebody/asked";
  made.status = status;
  made.error = error;
  return made;
}

TEST_CASE("requests are counted by route, method and status") {
  HttpCounts counts;
  counts.count(report("POST", "/v1/completions", 200));
  counts.count(report("POST", "/v1/completions", 200));
  counts.count(report("POST", "/v1/completions", 429, "queue_full"));
  counts.count(report("GET", "/v1/models/{*}", 404, "model_not_found"));
  counts.count(report("POST", "/v1/completions", 0));  // The client left.
  const auto requests = counts.totals().requests;
  CHECK(requests.size() == 4);
  CHECK(requests.at({"/v1/completions", "POST", 200}) == 2);
  CHECK(requests.at({"/v1/completions", "POST", 429}) == 1);
  CHECK(requests.at({"/v1/models/{*}", "GET", 404}) == 1);
  CHECK(requests.at({"/v1/completions", "POST", 499}) == 1);
}

TEST_CASE("nobody makes new series by inventing paths and methods") {
  HttpCounts counts;
  for (int i = 0; i < 50; ++i) {
    RequestReport made = report("", "", 404, "unknown_url");
    made.method = "M" + std::to_string(i);
    made.path = "/" + std::to_string(i);
    counts.count(made);
  }
  const auto requests = counts.totals().requests;
  REQUIRE(requests.size() == 1);
  CHECK(requests.at({"none", "other", 404}) == 50);
}

TEST_CASE("an error after work is no refusal") {
  HttpCounts counts;
  counts.count(report("POST", "/v1/completions", 429, "queue_full"));
  RequestReport failed = report("POST", "/v1/completions", 500, "engine_error");
  failed.work.emplace();
  counts.count(failed);
  const auto refusals = counts.totals().refusals;
  CHECK(refusals.size() == 1);
  CHECK(refusals.at("queue_full") == 1);
}

}  // namespace
}  // namespace spillway::http_counts_test
