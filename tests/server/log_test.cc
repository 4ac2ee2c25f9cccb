// The log: what its lines look like, where they go, and who learns the cause of an engine's error.
#include "server/log.h"

#include <catch2/catch.hpp>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/server/api/api_support.h"
#include "tests/support/captured_stderr.h"

namespace spillway::log_test {
namespace {

using test::Captured;

TEST_CASE("a line of the log has its time and level and goes to stderr") {
  set_log(LogFormat::kText, LogLevel::kInfo);  // What earlier tests left out is forgotten.
  Captured out(stdout);
  Captured log;
  log_info("loaded");
  log_warning("{} is text, not a format");
  log_error("lost");
  const std::string text = log.end();
  CHECK(out.end().empty());
  const std::string when = "\\[20..-..-.. ..:..:..\\....\\] ";
  CHECK_THAT(text, Catch::Matches(when + "\\[info\\] loaded\n" + when +
                                  "\\[warning\\] \\{\\} is text, not a format\n" + when +
                                  "\\[error\\] lost\n"));
}

TEST_CASE("what every sequence of a failed sweep has to say is one line, not hundreds") {
  set_log(LogFormat::kText, LogLevel::kInfo);
  Captured log;
  for (int i = 0; i < 300; ++i) log_error("read at 4096: Input/output error");
  log_error("something else");
  const std::string text = log.end();
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);  // With the count of those left out
  CHECK_THAT(text, Catch::Contains("299"));
}

// Its lines, as they are; the log is as it was afterwards.
std::vector<std::string> lines_of(LogFormat format, LogLevel least,
                                  const std::function<void()>& write) {
  set_log(format, least);
  Captured log;
  write();
  std::istringstream text(log.end());
  set_log(LogFormat::kText, LogLevel::kInfo);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("of hundreds of different errors in a second ten are written, and how many were not") {
  const auto lines = lines_of(LogFormat::kText, LogLevel::kInfo, [] {
    for (int i = 0; i < 300; ++i) log_error("error " + std::to_string(i));
  });
  // A slow machine may take more than a second for them.
  CHECK(lines.size() >= 10);
  CHECK(lines.size() < 100);
  CHECK_THAT(lines[9], Catch::EndsWith("error 9"));
}

TEST_CASE("lines below the chosen level are not written") {
  const auto write = [] {
    log_line(LogLevel::kDebug, "a", {});
    log_info("b");
    log_warning("c");
    log_error("d");
  };
  CHECK(lines_of(LogFormat::kText, LogLevel::kDebug, write).size() == 4);
  CHECK(lines_of(LogFormat::kText, LogLevel::kInfo, write).size() == 3);
  CHECK(lines_of(LogFormat::kText, LogLevel::kWarning, write).size() == 2);
  const auto errors = lines_of(LogFormat::kText, LogLevel::kError, write);
  REQUIRE(errors.size() == 1);
  CHECK_THAT(errors[0], Catch::EndsWith("[error] d"));
}

const LogField kFields[] = {{"id", "req-1"},         {"path", "/a \"b\"\n\x1b[31m\xff"},
                            {"tokens", int64_t{12}}, {"seconds", 0.12345678},
                            {"cut_off", true},       {"empty", ""}};

TEST_CASE("values stand behind a line's text, so that none can look like another") {
  const auto lines = lines_of(LogFormat::kText, LogLevel::kInfo,
                              [] { log_line(LogLevel::kInfo, "request", kFields); });
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0],
             Catch::EndsWith("[info] request id=req-1 path=\"/a \\\"b\\\"\\n\\u001b[31m\\ufffd\" "
                             "tokens=12 seconds=0.123457 cut_off=true empty=\"\""));
}

TEST_CASE("as JSON every line is an object, whatever it says") {
  const auto lines = lines_of(LogFormat::kJson, LogLevel::kInfo, [] {
    log_info("plan: {\"a\": \"b\"}\n\xff");
    log_line(LogLevel::kInfo, "request", kFields);
    for (int i = 0; i < 3; ++i) log_error("lost");
    log_error("found");
  });
  REQUIRE(lines.size() == 5);
  std::vector<Json> read;
  for (const std::string& line : lines) {
    INFO(line);
    read.push_back(Json::parse(line));
    CHECK_THAT(read.back()["time"].get<std::string>(),
               Catch::Matches("20..-..-..T..:..:..\\....Z"));
  }
  CHECK(read[0]["message"] == "plan: {\"a\": \"b\"}\n\xef\xbf\xbd");
  CHECK(read[0]["level"] == "info");
  CHECK(read[1]["path"] == "/a \"b\"\n\x1b[31m\xef\xbf\xbd");
  CHECK(read[1]["tokens"] == 12);
  CHECK(read[1]["seconds"] == 0.123457);
  CHECK(read[1]["cut_off"] == true);
  CHECK(read[2]["level"] == "error");
  CHECK(read[3]["message"] == "The last warning or error came 2 more times.");
  CHECK(read[4]["message"] == "found");
}

TEST_CASE("the cause of an engine error is in the log and not in the answer, which says so") {
  set_log(LogFormat::kText, LogLevel::kInfo);
  Captured log;
  TestServer::Options options;
  options.engine.fail_after_tokens = 2;
  std::string body;
  {
    TestServer test(options);
    body = test.post("/v1/completions", {{"prompt", "hi"}}).body;
  }
  CHECK_THAT(log.end(), Catch::Contains("[error] /v1/completions: ") && Catch::Contains("secret"));
  CHECK_THAT(body, Catch::Contains("log says why") && !Catch::Contains("secret"));
}

TEST_CASE("an exception while a request is handled answers 500 and is in the log") {
  Captured log;
  HttpAnswer answer;
  {
    Router router;
    router.add({.method = "GET",
                .path = "/",
                .handler =
                    [](HttpRequest, const ExchangePtr& exchange) {
                      exchange->post_work([] { throw std::runtime_error("the attic is full"); });
                    },
                .json_body = false,
                .open = true});
    const auto server = HttpServer::start("127.0.0.1", 0, {}, std::move(router)).value();
    answer = HttpClient(server->port()).get("/");
    server->stop();
  }
  CHECK(answer.status == 500);
  CHECK_THAT(answer.body, Catch::Contains("log says why") && !Catch::Contains("attic"));
  CHECK_THAT(log.end(), Catch::Contains("the attic is full"));
}

TEST_CASE("an error without a cause promises no log; whose machine it is reads the cause itself") {
  CHECK(engine_error().message.find("log") == std::string::npos);
  ApiError error = engine_error();
  CHECK(logged(error, "x").message == error.message);
  CHECK(with_cause(error).message == error.message);
  error.log_detail = "read model.spill at 4096: Input/output error";
  CHECK(with_cause(error).message ==
        "The engine failed while it ran this request: read model.spill at 4096: Input/output "
        "error");
}

}  // namespace
}  // namespace spillway::log_test
