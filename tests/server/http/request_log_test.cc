// The log's line of a request, as text and as JSON, and what it never says.
#include "server/http/request_log.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "server/log.h"
#include "tests/server/api/api_support.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/request_reports.h"

namespace spillway::request_log_test {
namespace {

using test::Captured;

RequestReport completion() {
  RequestReport report;
  report.id = "req-1";
  report.key = "key-2";
  report.client = "192.0.2.7";
  report.method = "POST";
  report.path = report.route = "/v1/completions";
  report.status = 200;
  report.whole = true;
  report.began = 50;
  report.seconds = 2.5;
  report.work = RequestWork{12, 4, 16, 0.25, 50.75, "length", ""};
  return report;
}

std::string logged_text(const RequestReport& report, LogFormat format = LogFormat::kText,
                        LogLevel least = LogLevel::kInfo) {
  set_log(format, least);
  Captured log;
  log_request(report);
  const std::string text = log.end();
  set_log(LogFormat::kText, LogLevel::kInfo);
  return text;
}

TEST_CASE("a line has who asked for what, and what became of it") {
  CHECK_THAT(logged_text(completion()),
             Catch::EndsWith("[info] request id=req-1 key=key-2 client=192.0.2.7 method=POST "
                             "path=/v1/completions status=200 prompt_tokens=12 cached_tokens=4 "
                             "generated_tokens=16 queue_seconds=0.25 first_token_seconds=0.75 "
                             "seconds=2.5 finish_reason=length\n"));
}

TEST_CASE("as JSON its numbers are numbers") {
  const Json line = Json::parse(logged_text(completion(), LogFormat::kJson));
  CHECK(line["message"] == "request");
  CHECK(line["level"] == "info");
  CHECK(line["id"] == "req-1");
  CHECK(line["status"] == 200);
  CHECK(line["generated_tokens"] == 16);
  CHECK(line["first_token_seconds"] == 0.75);
  CHECK(line["finish_reason"] == "length");
  CHECK_FALSE(line.contains("cut_off"));
  CHECK_FALSE(line.contains("error"));
}

TEST_CASE("of a request without an answer, or without work, the line says less") {
  RequestReport gone = completion();
  gone.status = 0;
  gone.whole = false;
  gone.work = RequestWork{12, 0, 0, 0.25, {}, "abort", ""};
  CHECK_THAT(logged_text(gone),
             Catch::EndsWith("status=499 cut_off=true prompt_tokens=12 cached_tokens=0 "
                             "generated_tokens=0 queue_seconds=0.25 seconds=2.5 "
                             "finish_reason=abort\n"));
  RequestReport refused;
  refused.id = "req-2";
  refused.client = "192.0.2.7";
  refused.status = 400;
  refused.error = "bad_http_request";
  refused.whole = true;
  CHECK_THAT(logged_text(refused), Catch::EndsWith("request id=req-2 client=192.0.2.7 status=400 "
                                                   "error=bad_http_request seconds=0.0\n"));
}

TEST_CASE("monitors fill no log, unless it is asked for") {
  for (const char* path : {"/health", "/metrics"}) {
    RequestReport polled;
    polled.path = polled.route = path;
    polled.status = 200;
    CHECK(logged_text(polled).empty());
    CHECK_THAT(logged_text(polled, LogFormat::kText, LogLevel::kDebug),
               Catch::Contains("[debug] request "));
  }
  CHECK(logged_text(completion(), LogFormat::kText, LogLevel::kWarning).empty());
}

TEST_CASE("a path is cut, and cannot write lines of its own") {
  RequestReport odd = completion();
  odd.path = "/a b\"=\n[error] " + std::string(5000, 'x');
  const std::string text = logged_text(odd);
  CHECK(text.size() < 700);
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  CHECK_THAT(text, Catch::Contains(R"(path="/a b\"=\n[error] xxx)"));
}

TEST_CASE(
    "the log of a server names each request by the id of its answer, and repeats no content") {
  test::RequestReports reports;
  TestServer::Options options;
  options.access.api_keys = {"top-secret-key"};
  options.observer = [observe = reports.observer()](const RequestReport& report) {
    log_request(report);
    observe(report);
  };
  options.engine = say("answered-words");
  set_log(LogFormat::kJson, LogLevel::kInfo);
  Captured log;
  std::vector<std::string> ids;
  {
    TestServer test(options);
    HttpClient client(test.server->port());
    const std::string key = "Authorization: Bearer top-secret-key\r\n";
    for (const char* body :
         {R"({"prompt":"asked-words"})", R"({"prompt":"asked-words","stream":true})",
          R"({"prompt":"asked-words","n":999})"}) {
      const HttpAnswer answer = client.post("/v1/completions?token=query-words", body, key);
      ids.push_back(answer.fields.at("x-request-id"));
      reports.wait(ids.size());  // Its handler may end after the answer, and the next one's before.
    }
    const HttpAnswer refused = client.post("/v1/completions", R"({"prompt":"asked-words"})",
                                           "Authorization: Bearer guessed-key\r\n");
    CHECK(refused.status == 401);
    ids.push_back(refused.fields.at("x-request-id"));
    client.get("/health");
    reports.wait(5);
  }
  const std::string text = log.end();
  set_log(LogFormat::kText, LogLevel::kInfo);
  INFO(text);
  for (const char* hidden : {"asked-words", "answered", "query-words", "secret", "guessed"}) {
    CHECK(text.find(hidden) == std::string::npos);
  }
  std::istringstream lines(text);
  size_t found = 0;
  for (std::string line; std::getline(lines, line); ++found) {
    REQUIRE(found < ids.size());
    const Json read = Json::parse(line);
    CHECK(read["id"] == ids[found]);
    CHECK(read["path"] == "/v1/completions");
    CHECK(read["client"] == "127.0.0.1");
    CHECK(read.contains("key") == (found < 3));
  }
  CHECK(found == 4);
}

}  // namespace
}  // namespace spillway::request_log_test
