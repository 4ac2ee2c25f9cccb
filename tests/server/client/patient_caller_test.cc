// Which calls are tried again, for how long, and what people are told meanwhile.
#include "server/client/patient_caller.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <vector>

#include "server/http/server.h"

namespace spillway::patient_caller_test {
namespace {

// A server whose answers are a list of statuses, the last of which stays; 0 cuts the connection.
struct Scripted {
  explicit Scripted(std::vector<int> given) : statuses(std::move(given)) {
    Router router;
    router.add({"GET", "/", [this](const HttpRequest&, const ExchangePtr& exchange) {
                  const int status = next();
                  if (status == 0) return exchange->abort();
                  HttpResponse response;
                  response.status = status;
                  if (useless) response.fields = {{"x-should-retry", "false"}};
                  exchange->respond(std::move(response));
                }});
    server = HttpServer::start("127.0.0.1", 0, {}, std::move(router)).value();
  }

  int next() {
    const std::lock_guard lock(mutex);
    const size_t at = std::min(static_cast<size_t>(calls++), statuses.size() - 1);
    return statuses[at];
  }

  int called() {
    const std::lock_guard lock(mutex);
    return calls;
  }

  PatientCaller caller(double patience_seconds = 60, std::function<bool()> interrupted = {}) {
    HttpCaller::Options calls_options;
    calls_options.interrupted = std::move(interrupted);
    PatientCaller::Options options;
    options.patience_seconds = patience_seconds;
    options.first_pause_seconds = 0.01;
    options.pause_seconds_max = 0.02;
    options.say = [this](const std::string& text) { said.push_back(text); };
    return PatientCaller(
        HttpCaller(parse_server_address(server->url()).value(), std::move(calls_options)), options);
  }

  std::mutex mutex;
  std::vector<int> statuses;
  int calls = 0;
  std::atomic<bool> useless = false;
  std::vector<std::string> said;
  std::unique_ptr<HttpServer> server;
};

const HttpCall kCall{.path = "/"};

TEST_CASE("what passes is tried again until it has passed") {
  Scripted server({503, 429, 502, 504, 503, 200});
  PatientCaller caller = server.caller();
  CHECK(caller.call(kCall)->status == 200);
  CHECK(server.called() == 6);
  REQUIRE(server.said.size() == 2);  // One outage, and its end
  CHECK_THAT(server.said[0], Catch::Contains("503") && Catch::Contains("--retry-seconds"));
  CHECK_THAT(server.said[1], Catch::Contains("again"));
}

TEST_CASE("a lost connection is tried again once the server has answered at all") {
  Scripted server({0, 200, 0, 0, 200});
  PatientCaller caller = server.caller();
  const Status first = caller.call(kCall).status();
  CHECK(first.code() == Code::kIoError);
  CHECK_THAT(std::string(first.message()), Catch::Contains("is the server running"));
  CHECK(caller.call(kCall)->status == 200);
  CHECK(caller.call(kCall)->status == 200);
  CHECK(server.called() == 5);
}

TEST_CASE("a call that must not be made twice comes back when it may have arrived") {
  const int end = GENERATE(0, 502, 504);
  Scripted server({200, 503, end, 429, 200});
  PatientCaller caller = server.caller();
  CHECK(caller.call(kCall)->status == 200);
  const HttpReply lost = caller.call(kCall, /*once=*/true).value();
  CHECK(lost.status == end);
  CHECK(server.called() == 3);
  CHECK(caller.call(kCall, /*once=*/true)->status == 200);
  CHECK(server.called() == 5);
}

TEST_CASE("what does not pass is not tried again") {
  for (const int status : {200, 400, 401, 403, 404, 409, 413, 500, 507}) {
    Scripted server({status});
    CHECK(server.caller().call(kCall)->status == status);
    CHECK(server.called() == 1);
  }
  Scripted told({503});
  told.useless = true;
  CHECK(told.caller().call(kCall)->status == 503);
  CHECK(told.called() == 1);
}

TEST_CASE("patience ends, and so does an interrupted wait") {
  Scripted server({503});
  CHECK(server.caller(0).call(kCall)->status == 503);
  CHECK(server.called() == 1);
  CHECK(server.said.empty());
  CHECK(server.caller(0.05).call(kCall)->status == 503);
  CHECK(server.called() > 1);
  int asked = 0;
  PatientCaller interrupted = server.caller(3600, [&asked] { return ++asked > 3; });
  CHECK(interrupted.call(kCall).status().code() == Code::kCancelled);
  CHECK(interrupted.pause(3600).code() == Code::kCancelled);
  Scripted lost({200, 0});
  PatientCaller caller = lost.caller(0.05);
  CHECK(caller.call(kCall)->status == 200);
  CHECK(caller.call(kCall).status().code() == Code::kIoError);
}

TEST_CASE("each try makes its call anew") {
  Scripted server({503, 503, 200});
  PatientCaller caller = server.caller();
  int made = 0;
  const auto make = [&]() -> Result<HttpCall> {
    ++made;
    return kCall;
  };
  CHECK(caller.call(make)->status == 200);
  CHECK(made == 3);
  const auto fails = []() -> Result<HttpCall> { return Status(Code::kCorruption, "no"); };
  CHECK(caller.call(fails).status().code() == Code::kCorruption);
}

}  // namespace
}  // namespace spillway::patient_caller_test
