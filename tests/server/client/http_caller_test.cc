// One call: bodies either way, whatever their size, and every way in which there is no answer.
#include "server/client/http_caller.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "server/http/body_sink.h"
#include "server/http/server.h"
#include "tests/support/patience.h"
#include "tests/support/temp_directory.h"

namespace spillway::http_caller_test {
namespace {

// Counts what it gets; refuses at the limit.
class CountingSink : public BodySink {
 public:
  explicit CountingSink(size_t bytes_max) : bytes_max_(bytes_max) {}
  std::optional<ApiError> write(std::string_view more) override {
    bytes += more.size();
    if (bytes <= bytes_max_) return {};
    ApiError error;
    error.status = 413;
    error.message = "Too much.";
    return error;
  }
  size_t bytes = 0;

 private:
  const size_t bytes_max_;
};

class Repeated : public BodySource {
 public:
  explicit Repeated(uint64_t bytes) : bytes_(bytes), left_(bytes) {}
  uint64_t bytes() const override { return bytes_; }
  Result<std::string> next() override {
    const std::string piece(std::min<uint64_t>(left_, 100'000), 'x');
    left_ -= piece.size();
    return piece;
  }

 private:
  const uint64_t bytes_;
  uint64_t left_;
};

void answer(const ExchangePtr& exchange, std::string body, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  exchange->respond(std::move(response));
}

Router routes(size_t sink_bytes_max = SIZE_MAX) {
  Router router;
  router.add({"GET", "/hello", [](const HttpRequest& request, const ExchangePtr& exchange) {
                answer(exchange, request.host + " " + request.authorization);
              }});
  router.add({"POST", "/echo",
              [](const HttpRequest& request, const ExchangePtr& exchange) {
                answer(exchange, request.body);
              },
              true});
  router.add({"GET", "/large", [](const HttpRequest&, const ExchangePtr& exchange) {
                HttpResponse response;
                response.source = std::make_shared<Repeated>(20'000'000);
                exchange->respond(std::move(response));
              }});
  router.add(
      {"GET", "/cut", [](const HttpRequest&, const ExchangePtr& exchange) { exchange->abort(); }});
  router.add({"GET", "/silent", [](const HttpRequest&, const ExchangePtr&) {}});
  router.add({"GET", "/later", [](const HttpRequest&, const ExchangePtr& exchange) {
                HttpResponse response;
                response.status = 503;
                response.fields = {{"Retry-After", "7"}, {"x-should-retry", "false"}};
                exchange->respond(std::move(response));
              }});
  Route upload{"POST", "/upload", [](const HttpRequest& request, const ExchangePtr& exchange) {
                 answer(exchange, std::to_string(static_cast<CountingSink&>(*request.sink).bytes));
               }};
  upload.sink = [sink_bytes_max](const HttpRequest&) {
    return std::shared_ptr<BodySink>(std::make_shared<CountingSink>(sink_bytes_max));
  };
  router.add(std::move(upload));
  return router;
}

HttpLimits limits() {
  HttpLimits limits;
  limits.upload_bytes_max = size_t{1} << 30;
  return limits;
}

std::unique_ptr<HttpServer> serve(size_t sink_bytes_max = SIZE_MAX) {
  return HttpServer::start("127.0.0.1", 0, limits(), routes(sink_bytes_max)).value();
}

HttpCaller caller_of(const HttpServer& server, HttpCaller::Options options = {}) {
  return HttpCaller(parse_server_address(server.url()).value(), std::move(options));
}

// A body of many pieces.
BodyPieces pieces(uint64_t bytes, size_t each = 300'000) {
  BodyPieces made;
  made.bytes = bytes;
  made.next = [left = bytes, each]() mutable -> Result<std::string> {
    const std::string piece(std::min<uint64_t>(left, each), 'y');
    left -= piece.size();
    return piece;
  };
  return made;
}

HttpCall upload_of(BodyPieces body) {
  HttpCall call{.method = "POST", .path = "/upload", .content_type = "application/octet-stream"};
  call.pieces = std::move(body);
  return call;
}

TEST_CASE("a call brings the answer, with key and host as they should be") {
  const auto server = serve();
  HttpCaller::Options options;
  options.api_key = "secret";
  const HttpReply reply = caller_of(*server, options).call({.path = "/hello"}).value();
  CHECK(reply.status == 200);
  CHECK(reply.body == "127.0.0.1:" + std::to_string(server->port()) + " Bearer secret");
  const HttpCall echo{
      .method = "POST", .path = "/echo", .content_type = "application/json", .body = R"({"a": 1})"};
  CHECK(caller_of(*server).call(echo)->body == echo.body);
  CHECK(caller_of(*server).call({.path = "/nothing"})->status == 404);
  const HttpReply later = caller_of(*server).call({.path = "/later"}).value();
  CHECK(later.status == 503);
  CHECK(later.retry_after_seconds == 7);
  CHECK(later.retry_is_useless);
}

TEST_CASE("a call goes through a Unix socket") {
  const TempDirectory folder;
  const auto server =
      HttpServer::start(HttpListener::bind_socket(folder / "s", 0600).value(), limits(), routes())
          .value();
  CHECK(caller_of(*server).call({.path = "/hello"})->body == "localhost ");
  CHECK(caller_of(*server).call(upload_of(pieces(1'000'000)))->body == "1000000");
}

TEST_CASE("bodies may be large either way") {
  const auto server = serve();
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{300'000}, uint64_t{20'000'001}}) {
    const HttpReply reply = caller_of(*server).call(upload_of(pieces(bytes))).value();
    CHECK(reply.status == 200);
    CHECK(reply.body == std::to_string(bytes));
  }
  HttpCall large{.path = "/large"};
  uint64_t taken = 0;
  large.take = [&](std::string_view bytes) -> Status {
    taken += bytes.size();
    return {};
  };
  CHECK(caller_of(*server).call(large)->status == 200);
  CHECK(taken == 20'000'000);
  // What is held has a limit.
  large.take = {};
  const HttpReply held = caller_of(*server).call(large).value();
  CHECK(held.status == 0);
  CHECK_THAT(held.trouble, Catch::Contains("too long"));
}

TEST_CASE("a refusal comes through, before the body or in the middle of it") {
  const auto server = serve(2'000'000);
  HttpCall wrong = upload_of(pieces(20'000'000));
  wrong.path = "/nothing";
  bool asked = false;
  wrong.pieces->next = [&]() -> Result<std::string> {
    asked = true;
    return std::string(1000, 'y');
  };
  CHECK(caller_of(*server).call(wrong)->status == 404);
  CHECK_FALSE(asked);
  CHECK(caller_of(*server).call(upload_of(pieces(20'000'000)))->status == 413);
}

TEST_CASE("the errors of bodies are the call's") {
  const auto server = serve();
  HttpCall call = upload_of(pieces(1000));
  call.pieces->next = []() -> Result<std::string> { return Status(Code::kCorruption, "shorter"); };
  CHECK(caller_of(*server).call(call).status().message() == "shorter");
  call.pieces->next = []() -> Result<std::string> { return std::string(2000, 'x'); };
  CHECK(caller_of(*server).call(call).status().code() == Code::kCorruption);
  HttpCall large{.path = "/large"};
  large.take = [](std::string_view) { return Status(Code::kIoError, "the disk is full"); };
  CHECK(caller_of(*server).call(large).status().message() == "the disk is full");
}

TEST_CASE("where there is no answer the reply says why, and whether the request may have arrived") {
  auto server = serve();
  const HttpReply cut = caller_of(*server).call({.path = "/cut"}).value();
  CHECK(cut.status == 0);
  CHECK(cut.sent);
  CHECK_FALSE(cut.trouble.empty());
  HttpCaller::Options impatient;
  impatient.stall_seconds = 0.3;
  const HttpReply silent = caller_of(*server, impatient).call({.path = "/silent"}).value();
  CHECK(silent.status == 0);
  CHECK_THAT(silent.trouble, Catch::Contains("too long"));
  const HttpCaller gone = caller_of(*server);
  server->stop();
  const HttpReply refused = gone.call({.path = "/hello"}).value();
  CHECK(refused.status == 0);
  CHECK_FALSE(refused.sent);
  CHECK_THAT(refused.trouble, Catch::Contains("connect") && Catch::Contains("127.0.0.1"));
  const HttpReply unknown =
      HttpCaller(parse_server_address("http://no-such-host.invalid").value(), {})
          .call({.path = "/"})
          .value();
  CHECK(unknown.status == 0);
  CHECK_THAT(unknown.trouble, Catch::Contains("no-such-host.invalid"));
  const HttpReply no_socket = HttpCaller(parse_server_address("unix:/no/such/socket").value(), {})
                                  .call({.path = "/"})
                                  .value();
  CHECK(no_socket.status == 0);
  CHECK_FALSE(no_socket.sent);
}

TEST_CASE("a call that waits can be interrupted, unless it must come to its end") {
  const auto server = serve();
  std::atomic<bool> interrupted{false};
  HttpCaller::Options options;
  options.interrupted = [&] { return interrupted.load(); };
  options.stall_seconds = 0.5;
  const HttpCaller caller = caller_of(*server, options);
  CHECK(caller.call({.path = "/hello"})->status == 200);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    interrupted = true;
  });
  HttpCall to_its_end{.path = "/silent"};
  to_its_end.to_its_end = true;
  const auto ended = caller.call(to_its_end);
  later.join();
  REQUIRE(ended.ok());
  CHECK(ended->status == 0);
  CHECK(caller.call({.path = "/hello"}).status().code() == Code::kCancelled);
  interrupted = false;
  HttpCaller::Options patient = options;
  patient.stall_seconds = test::kPatience;
  std::thread again([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    interrupted = true;
  });
  CHECK(caller_of(*server, patient).call({.path = "/silent"}).status().code() == Code::kCancelled);
  again.join();
}

}  // namespace
}  // namespace spillway::http_caller_test
