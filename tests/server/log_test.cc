// The log: what its lines look like, where they go, and who learns the cause of an engine's error.
#include "server/log.h"

#include <catch2/catch.hpp>
#include <stdexcept>

#include "tests/server/api/api_support.h"
#include "tests/support/captured_stderr.h"

namespace spillway::log_test {
namespace {

using test::Captured;

TEST_CASE("a line of the log has its time and level and goes to stderr") {
  {  // What an earlier test repeated is counted by the next other line, which is this one.
    Captured before;
    log_info("begin");
  }
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
  Captured log;
  for (int i = 0; i < 300; ++i) log_error("read at 4096: Input/output error");
  log_error("something else");
  const std::string text = log.end();
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);  // With the count of those left out
  CHECK_THAT(text, Catch::Contains("299"));
}

TEST_CASE("the cause of an engine error is in the log and not in the answer, which says so") {
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
