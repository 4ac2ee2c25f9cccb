// Bodies and calls at the edge of what is accepted, each of which one turned condition would let
// through, refuse or lose.
#include <catch2/catch.hpp>
#include <set>

#include "server/api/answer_json.h"
#include "server/api/completion_run.h"
#include "tests/server/api/api_support.h"

namespace spillway::api_edges_test {
namespace {

struct Fixture {
  explicit Fixture(FakeScheduler::Options options = {}) : engine(std::move(options)) {}

  FakeScheduler engine;
  Tokenizer tokenizer = byte_tokenizer();
  ApiContext context = fake_context(engine.shape(), &tokenizer);

  // Empty where the body is accepted.
  std::string refusal(const std::string& body) {
    const auto parsed = parse_completion(body, context);
    const auto* error = std::get_if<ApiError>(&parsed);
    return error == nullptr ? std::string() : error->message;
  }
  CompletionCall call(const std::string& body) {
    INFO(body);
    auto parsed = parse_completion(body, context);
    REQUIRE(std::holds_alternative<CompletionCall>(parsed));
    return std::get<CompletionCall>(std::move(parsed));
  }
};

TEST_CASE("a logit_bias key beyond int32 is refused as any other bad id") {
  Fixture f;
  CHECK(f.refusal(R"({"prompt":"a","logit_bias":{"50":1}})") == "");
  for (const char* key : {"2147483648", "9999999999", "99999999999999999999"}) {
    const std::string body = R"({"prompt":"a","logit_bias":{")" + std::string(key) + R"(":1}})";
    CHECK_THAT(f.refusal(body), Catch::Contains("logit_bias"));
  }
}

TEST_CASE("as many JSON values as the limit are accepted, and not one more") {
  Fixture f;
  const std::string body = R"({"prompt":"a","n":1})";  // The object and two fields
  f.context.limits.json_values_max = 3;
  CHECK(f.refusal(body) == "");
  f.context.limits.json_values_max = 2;
  CHECK_THAT(f.refusal(body), Catch::Contains("values"));
}

TEST_CASE("brackets behind an escaped quote are text") {
  Fixture f;
  f.context.limits.json_values_max = 10;
  CHECK(f.refusal(R"({"prompt":"a \" )" + std::string(60, '[') + R"("})") == "");
}

TEST_CASE("a whole number as a double counts up to 2^53") {
  Fixture f;
  CHECK(f.refusal(R"({"prompt":"a","seed":9007199254740992.0})") == "");
  CHECK(f.refusal(R"({"prompt":"a","seed":9007199254740994.0})") != "");
}

TEST_CASE("a token that the model has no row for does not reach the engine") {
  Fixture f;
  ModelShape small = f.engine.shape();
  small.vocabulary = 'c' + 1;  // Token b + 1 is byte b.
  f.context.shape = &small;
  CHECK(f.refusal(R"({"prompt":"abab"})") == "");
  CHECK_THAT(f.refusal(R"({"prompt":"abcab"})"), Catch::Contains("embedding"));
}

TEST_CASE("a text that cannot fit is refused before it is tokenised") {
  Fixture f;
  const auto most = static_cast<size_t>(8 * f.engine.shape().positions + (64 << 10));
  CHECK_THAT(f.refusal(R"({"prompt":")" + std::string(most + 1, 'a') + R"("})"),
             Catch::Contains("the most that is read is " + std::to_string(most)));
  CHECK_THAT(f.refusal(R"({"prompt":")" + std::string(most, 'a') + R"("})"),
             !Catch::Contains("the most that is read is"));
}

TEST_CASE("what was submitted before a refusal is cancelled, whatever the engine does meanwhile") {
  Fixture f;
  f.engine.hold();  // What is not cancelled stays.
  f.engine.refuse_after(2, Status(Code::kCapacity, "the queue is full"));
  const auto started = CompletionRun::start(f.engine, &f.tokenizer,
                                            f.call(R"({"prompt":"a","n":4})"), CompletionEvents());
  REQUIRE(std::holds_alternative<ApiError>(started));
  CHECK(f.engine.submitted() == 2);
  CHECK(f.engine.wait_idle());
  CHECK(f.engine.finished(FinishReason::kCancelled) == 2);
}

// Keeps the sinks for the test to call, and what was cancelled.
class ScriptedScheduler final : public Scheduler {
 public:
  const ModelShape& shape() const override { return engine_.shape(); }
  int64_t queue_max() const override { return 64; }
  Result<RequestId> submit(Request, std::shared_ptr<TokenSink> sink) override {
    sinks.push_back(std::move(sink));
    return RequestId{sinks.size()};
  }
  void cancel(RequestId id) override { cancelled.insert(id); }
  void drain(double) override {}
  SchedulerStats stats() const override { return {}; }

  std::vector<std::shared_ptr<TokenSink>> sinks;
  std::set<RequestId> cancelled;

 private:
  FakeScheduler engine_;  // For its shape
};

TEST_CASE("when one sequence of a call fails, the others are cancelled and say nothing more") {
  Fixture f;
  ScriptedScheduler scheduler;
  int texts = 0, ends = 0;
  CompletionEvents events;
  events.on_text = [&](ChoiceText) { ++texts; };
  events.on_done = [&](CompletionResult result) {
    ++ends;
    CHECK(result.error);
  };
  const auto run =
      CompletionRun::start(scheduler, &f.tokenizer,
                           f.call(R"({"prompt":["a","b","c"],"stream":true})"), std::move(events));
  REQUIRE(scheduler.sinks.size() == 3);
  CHECK(scheduler.sinks[1]->on_token('x' + 1, nullptr) == AfterToken::kGoOn);
  CHECK(texts == 1);
  Finish failure;
  failure.reason = FinishReason::kError;
  failure.status = Status(Code::kIoError, "a read failed");
  scheduler.sinks[0]->on_finish(failure);
  // The second runs and the third may wait for long: neither would ever be an answer.
  CHECK(scheduler.cancelled.contains(RequestId{2}));
  CHECK(scheduler.cancelled.contains(RequestId{3}));
  CHECK(scheduler.sinks[1]->on_token('y' + 1, nullptr) == AfterToken::kCancel);
  CHECK(texts == 1);
  Finish cancelled;
  cancelled.reason = FinishReason::kCancelled;
  cancelled.status = Status(Code::kCancelled, "cancelled");
  scheduler.sinks[1]->on_finish(cancelled);
  CHECK(ends == 0);
  scheduler.sinks[2]->on_finish(cancelled);
  CHECK(ends == 1);
}

TEST_CASE("a stop string that the last of min_tokens completes does not stop") {
  Fixture f(say("ab"));
  const CompletionCall call =
      f.call(R"({"prompt":"x","min_tokens":2,"max_tokens":6,"stop":"b","temperature":0})");
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<CompletionResult> result;
  CompletionEvents events;
  events.on_done = [&](CompletionResult done) {
    const std::lock_guard lock(mutex);
    result = std::move(done);
    changed.notify_all();
  };
  const auto run = CompletionRun::start(f.engine, &f.tokenizer, call, std::move(events));
  REQUIRE(run.index() == 0);
  std::unique_lock lock(mutex);
  REQUIRE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return result.has_value(); }));
  REQUIRE(result->choices.size() == 1);
  CHECK(result->choices[0].text == "aba");
}

}  // namespace
}  // namespace spillway::api_edges_test
