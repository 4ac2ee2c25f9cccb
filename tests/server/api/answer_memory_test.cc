// Memory of prompts and answers: what is counted, what is refused, when it is given back.
#include "server/api/answer_memory.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "scheduler/planning/memory_budget.h"
#include "tests/server/api/api_support.h"

namespace spillway::answer_memory_test {
namespace {

TEST_CASE("leases of answers share one total and give it back") {
  AnswerMemory memory(1000);
  auto first = memory.take(600);
  REQUIRE(std::holds_alternative<std::shared_ptr<void>>(first));
  const auto full = memory.take(401);
  REQUIRE(std::holds_alternative<ApiError>(full));
  CHECK(std::get<ApiError>(full).status == 429);
  CHECK(std::get<ApiError>(full).code == "answers_full");
  CHECK(std::get<ApiError>(full).retry_after_seconds >= 1);
  CHECK(memory.held() == 600);
  {
    auto second = memory.take(400);
    CHECK(memory.held() == 1000);
    std::get<0>(first).reset();
    CHECK(memory.held() == 400);
  }
  CHECK(memory.held() == 0);
  const auto never = memory.take(1001);
  REQUIRE(std::holds_alternative<ApiError>(never));
  CHECK(std::get<ApiError>(never).status == 400);
  CHECK(std::get<ApiError>(never).message.find("--answers-bytes-max") != std::string::npos);
}

TEST_CASE("stop strings count for every sequence that looks for them") {
  CompletionCall call;
  call.requests.resize(10);
  const uint64_t without = answer_bytes(call);
  call.stop.assign(64, std::string(256, 's'));
  CHECK(answer_bytes(call) - without >= 10 * 64 * 256 * (sizeof(char) + sizeof(uint16_t)));
}

TEST_CASE("log-probabilities of chats, which have bytes, count for more") {
  CompletionCall call;
  call.requests.resize(1);
  call.requests[0].max_tokens = 100;
  call.logprobs = 20;
  const uint64_t plain = answer_bytes(call);
  call.chat = true;
  CHECK(answer_bytes(call) - plain > uint64_t{100} * 20 * 256);
}

TEST_CASE("an answer that would not fit is refused before it costs anything") {
  TestServer::Options options;
  options.answers_bytes_max = 64 << 10;
  TestServer test(options);
  const Json small = {{"prompt", "a"}, {"max_tokens", 4}, {"logprobs", 1}, {"echo", true}};
  Json large = small;
  large.update({{"max_tokens", 100}, {"logprobs", 20}});
  const HttpAnswer refused = test.post("/v1/completions", large);
  CHECK(refused.status == 400);
  CHECK(Json::parse(refused.body)["error"]["code"] == "answer_too_large");
  CHECK(test.engine.submitted() == 0);
  for (const bool stream : {false, true}) {  // Each is given back.
    Json body = small;
    body["stream"] = stream;
    for (int i = 0; i < 40; ++i) CHECK(test.post("/v1/completions", body).status == 200);
  }
  test.engine.hold();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<HttpClient>(test.server->port()));
    clients.back()->send(post_text("/v1/completions", small.dump()));
  }
  REQUIRE(test.engine.wait_submitted(80 + 10));  // For more than ten there is no memory.
  const HttpAnswer later = test.post("/v1/completions", small);
  CHECK(later.status == 429);
  CHECK(Json::parse(later.body)["error"]["code"] == "answers_full");
  test.engine.release();
  int answered = 0;
  for (const auto& client : clients) answered += client->read_answer().status == 200;
  CHECK(answered >= 10);
  clients.clear();
  for (int i = 0; i < 1000 && test.api.answers.held() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(test.api.answers.held() == 0);
}

TEST_CASE("what requests may hold is a part of the process's share of the host's memory") {
  const RequestMemory usual = within(uint64_t{400} << 20, {});
  CHECK(usual.total() <= uint64_t{160} << 20);
  CHECK(process_bytes(usual.total(), 0) == kProcessBytes);
  // What is asked for beyond comes on top, and more memory allows more answers.
  const RequestMemory bodies = within(uint64_t{400} << 20, {.body_bytes_max = uint64_t{32} << 20});
  CHECK(bodies.bodies_bytes_max() >= 4 * bodies.body_bytes_max);
  CHECK(process_bytes(bodies.total(), 0) - kProcessBytes == bodies.total() - (uint64_t{160} << 20));
  const RequestMemory large = within(uint64_t{8} << 30, {});
  CHECK(large.answers_bytes_max == uint64_t{512} << 20);
  CHECK(process_bytes(large.total(), 0) - process_bytes(usual.total(), 0) ==
        large.total() - usual.total());
  CHECK(within(uint64_t{8} << 30, {.answers_bytes_max = 7}).answers_bytes_max == 7);
  CHECK(process_bytes(0, uint64_t{300} << 20) > kProcessBytes + (uint64_t{256} << 20));
}

}  // namespace
}  // namespace spillway::answer_memory_test
