// CompletionRun and completion_json: tokens become choices.
#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <mutex>

#include "server/api/answer_json.h"
#include "server/api/completion_run.h"
#include "server/tokenizer/utf8.h"
#include "tests/server/api/api_support.h"
#include "tests/support/patience.h"

namespace spillway::completion_run_test {
namespace {

// Runs calls to their end and keeps what came.
struct Runner {
  explicit Runner(FakeScheduler::Options options = {}) : engine(std::move(options)) {}

  CompletionCall parse(const Json& body) {
    auto parsed = parse_completion(body.dump(), context);
    if (const auto* error = std::get_if<ApiError>(&parsed)) FAIL(error->message);
    return std::get<CompletionCall>(std::move(parsed));
  }

  CompletionEvents events() {
    CompletionEvents made;
    made.on_text = [this](ChoiceText piece) {
      const std::lock_guard lock(mutex);
      pieces.push_back(std::move(piece));
    };
    made.on_done = [this](CompletionResult result) {
      const std::lock_guard lock(mutex);
      ++done;
      last = std::move(result);
      changed.notify_all();
    };
    return made;
  }

  std::shared_ptr<CompletionRun> start(const Json& body) {
    call = parse(body);
    auto started = CompletionRun::start(engine, context.tokenizer, call, events());
    if (const auto* error = std::get_if<ApiError>(&started)) FAIL(error->message);
    return std::get<0>(started);
  }

  CompletionResult finish() {
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, std::chrono::duration<double>(test::kPatience),
                             [this] { return done > 0; }));
    return last;
  }

  Json answer(const Json& body) {
    const auto run = start(body);
    const CompletionResult result = finish();
    REQUIRE_FALSE(result.error);
    return Json::parse(answer_body(make_completion_head(call), call, context, result));
  }

  Tokenizer tokenizer = byte_tokenizer();
  FakeScheduler engine;
  ApiContext context = fake_context(engine.shape(), &tokenizer);
  CompletionCall call;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<ChoiceText> pieces;
  int done = 0;
  CompletionResult last;
};

TEST_CASE("an answer has every field that clients require") {
  Runner runner;
  const Json json = runner.answer({{"prompt", "hi"}, {"max_tokens", 5}, {"temperature", 0}});
  CHECK(json["id"].get<std::string>().starts_with("cmpl-"));
  CHECK(json["object"] == "text_completion");
  CHECK(json["created"].is_number_integer());
  CHECK(json["model"] == "fake-model");
  REQUIRE(json["choices"].size() == 1);
  const Json& choice = json["choices"][0];
  CHECK(choice["index"] == 0);
  CHECK(choice["text"] == fake_text("hi", 5));
  CHECK(choice.at("logprobs").is_null());
  CHECK(choice["finish_reason"] == "length");
  CHECK(choice.at("stop_reason").is_null());
  CHECK_FALSE(choice.contains("token_ids"));
  CHECK(json["usage"]["prompt_tokens"] == 3);
  CHECK(json["usage"]["completion_tokens"] == 5);
  CHECK(json["usage"]["total_tokens"] == 8);
}

TEST_CASE("usage tells what a KV rule kept, summed over choices; nothing without a rule") {
  const Json full = Runner().answer({{"prompt", "hi"}, {"max_tokens", 2}});
  CHECK_FALSE(full["usage"].contains("kv_cache"));
  const Json h2o =
      Runner().answer({{"prompt", "hi"}, {"max_tokens", 2}, {"n", 2}, {"kv_rule", "h2o"}});
  REQUIRE(h2o["usage"].contains("kv_cache"));
  CHECK(h2o["usage"]["kv_cache"] ==
        Json{{"rule", "h2o"}, {"rows_kept", 6}, {"rows_dropped", 8}, {"bytes_saved", 1000}});
}

TEST_CASE("choices come in the order prompt, sample") {
  Runner runner;
  const Json json =
      runner.answer({{"prompt", {"a", "b", "c"}}, {"n", 2}, {"max_tokens", 4}, {"temperature", 0}});
  REQUIRE(json["choices"].size() == 6);
  const char* prompts[] = {"a", "a", "b", "b", "c", "c"};
  for (size_t i = 0; i < 6; ++i) {
    CHECK(json["choices"][i]["index"] == i);
    CHECK(json["choices"][i]["text"] == fake_text(prompts[i], 4));
  }
  CHECK(json["usage"]["prompt_tokens"] == 6);  // Each prompt once
  CHECK(json["usage"]["completion_tokens"] == 24);
}

TEST_CASE("a stop string ends the text before it, or behind it") {
  Runner runner(say("one two three "));
  Json body = {{"prompt", "x"}, {"max_tokens", 40}, {"stop", {"zzz", "two"}}};
  Json choice = runner.answer(body)["choices"][0];
  CHECK(choice["text"] == "one ");
  CHECK(choice["finish_reason"] == "stop");
  CHECK(choice["stop_reason"] == "two");
  body["include_stop_str_in_output"] = true;
  Runner second(say("one two three "));
  CHECK(second.answer(body)["choices"][0]["text"] == "one two");
  // Text that only began like a stop string is not lost at the end.
  Runner third(say("one tw"));
  choice = third.answer({{"prompt", "x"}, {"max_tokens", 6}, {"stop", "two"}})["choices"][0];
  CHECK(choice["text"] == "one tw");
  CHECK(choice["finish_reason"] == "length");
}

TEST_CASE("stop strings do not count before min_tokens") {
  Runner runner(say("ab"));
  const Json choice = runner.answer(
      {{"prompt", "x"}, {"max_tokens", 40}, {"min_tokens", 5}, {"stop", "b"}})["choices"][0];
  CHECK(choice["text"] == "ababa");
  CHECK(choice["stop_reason"] == "b");
}

TEST_CASE("stop tokens: end of text has no reason, a named one has") {
  FakeScheduler::Options options;
  options.token = [](const Request&, int64_t t) {
    return t < 2 ? 'k' + 1 : static_cast<int32_t>(7 - 7 * (t == 2));
  };
  Runner runner(options);
  const Json answer = runner.answer({{"prompt", "x"}, {"return_token_ids", true}});
  CHECK(answer["usage"]["completion_tokens"] == 3);  // The end token is one, without text.
  Json choice = answer["choices"][0];
  CHECK(choice["text"] == "kk");
  CHECK(choice["token_ids"] == Json{'k' + 1, 'k' + 1, 0});
  CHECK(choice["finish_reason"] == "stop");
  CHECK(choice["stop_reason"].is_null());
  Runner second(options);
  choice =
      second.answer({{"prompt", "x"}, {"ignore_eos", true}, {"stop_token_ids", {7}}})["choices"][0];
  CHECK(choice["finish_reason"] == "stop");
  CHECK(choice["stop_reason"] == 7);
}

// What lm-eval's `[ctxlen:-1]` counts on.
TEST_CASE("a prompt's score has one entry more than the prompt, whatever is drawn") {
  for (const int32_t drawn : {0, 'k' + 1}) {
    FakeScheduler::Options options;
    options.token = [drawn](const Request&, int64_t) { return drawn; };
    for (const bool stream : {false, true}) {
      Runner runner(options);
      const Json body = {{"prompt", "hello"}, {"max_tokens", 1},  {"echo", true},
                         {"logprobs", 1},     {"stream", stream}, {"return_token_ids", true}};
      runner.start(body);
      const CompletionResult result = runner.finish();
      REQUIRE_FALSE(result.error);
      std::vector<TokenScore> scores;
      std::vector<int32_t> tokens;
      std::string text;
      for (const ChoiceText& piece : stream ? runner.pieces : result.choices) {
        scores.insert(scores.end(), piece.scores.begin(), piece.scores.end());
        tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
        text += piece.text;
      }
      CHECK(scores.size() == static_cast<size_t>(result.usage.prompt_tokens) + 1);
      CHECK(scores.back().token == drawn);
      CHECK(scores.back().text_offset == 5);
      CHECK(scores.back().logprobs.best.size() == 1);
      CHECK(tokens == std::vector<int32_t>{drawn});
      CHECK(text == (drawn == 0 ? "hello" : "hellok"));
      CHECK(result.usage.generated_tokens == 1);
    }
  }
}

TEST_CASE("who leaves in the middle of a sweep is cancelled, not stopped") {
  std::shared_ptr<CompletionRun> run;
  FakeScheduler::Options options;
  options.token = [&](const Request&, int64_t t) {
    if (t == 2) run->cancel();
    return 'k' + 1;
  };
  Runner runner(options);
  runner.engine.hold();
  run = runner.start({{"prompt", "x"}, {"n", 2}, {"max_tokens", 3}});
  runner.engine.release();
  CHECK(runner.finish().cancelled);
  REQUIRE(runner.engine.wait_idle());
  CHECK(runner.engine.finished(FinishReason::kCancelled) == 2);
  CHECK(runner.engine.stats().times.whole.count() == 0);
}

TEST_CASE("characters split over tokens arrive whole") {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";  // a é € 😀 z
  Runner runner(say(text));
  runner.start({{"prompt", "x"}, {"max_tokens", 11}, {"stream", true}});
  REQUIRE_FALSE(runner.finish().error);
  std::string joined;
  for (const ChoiceText& piece : runner.pieces) {
    CHECK(is_valid_utf8(piece.text));
    if (!piece.finished) CHECK_FALSE(piece.text.empty());
    joined += piece.text;
  }
  CHECK(joined == text);
  // Cut in the middle of a character: it becomes U+FFFD, and the JSON stays valid.
  Runner cut(say(text));
  CHECK(cut.answer({{"prompt", "x"}, {"max_tokens", 2}})["choices"][0]["text"] == "a\xef\xbf\xbd");
}

TEST_CASE("logprobs are four parallel arrays") {
  Runner runner(say("a\xc3\xa9z"));
  const Json json = runner.answer({{"prompt", "x"}, {"max_tokens", 4}, {"logprobs", 2}});
  const Json& logprobs = json["choices"][0]["logprobs"];
  CHECK(logprobs["tokens"] == Json({"a", "bytes:\\xc3", "bytes:\\xa9", "z"}));
  CHECK(logprobs["text_offset"] == Json({0, 1, 1, 2}));  // Characters, not bytes
  REQUIRE(logprobs["token_logprobs"].size() == 4);
  REQUIRE(logprobs["top_logprobs"].size() == 4);
  const int token = 'a' + 1;
  CHECK(logprobs["token_logprobs"][0].get<double>() == Approx(-0.5 - token % 7));
  CHECK(logprobs["top_logprobs"][0].size() == 2);
  CHECK(logprobs["top_logprobs"][0]["a"] == logprobs["token_logprobs"][0]);
  CHECK(logprobs["top_logprobs"][0].contains("b"));
}

TEST_CASE("echo puts the prompt and its logprobs in front") {
  Runner runner(say("xyz"));
  const Json json =
      runner.answer({{"prompt", "h\xc3\xa9"}, {"max_tokens", 2}, {"echo", true}, {"logprobs", 1}});
  const Json& choice = json["choices"][0];
  CHECK(choice["text"] == "h\xc3\xa9xy");
  const Json& logprobs = choice["logprobs"];
  CHECK(logprobs["tokens"] == Json({"</s>", "h", "bytes:\\xc3", "bytes:\\xa9", "x", "y"}));
  CHECK(logprobs["text_offset"] == Json({0, 0, 1, 1, 2, 3}));
  CHECK(logprobs["token_logprobs"][0].is_null());
  CHECK(logprobs["top_logprobs"][0].is_null());
  CHECK(logprobs["token_logprobs"][1].is_number());
  CHECK(json["usage"]["completion_tokens"] == 2);
}

TEST_CASE("max_tokens 0 scores the prompt only") {
  Runner runner;
  const Json json = runner.answer({{"prompt", {5, 7, 9}},
                                   {"max_tokens", 0},
                                   {"echo", true},
                                   {"logprobs", 0},
                                   {"return_tokens_as_token_ids", true}});
  const Json& choice = json["choices"][0];
  CHECK(choice["finish_reason"] == "length");
  CHECK(choice["logprobs"]["tokens"] == Json({"token_id:5", "token_id:7", "token_id:9"}));
  CHECK(choice["logprobs"]["top_logprobs"][1].size() == 1);
  CHECK(json["usage"]["completion_tokens"] == 0);
  Runner plain;
  const Json empty = plain.answer({{"prompt", "x"}, {"max_tokens", 0}})["choices"][0];
  CHECK(empty["text"] == "");
  CHECK(empty["finish_reason"] == "length");
}

TEST_CASE("infinite logprobs stay JSON numbers") {
  Runner runner;
  CompletionCall call = runner.parse({{"prompt", "x"}, {"logprobs", 1}});
  CompletionResult result;
  result.choices.resize(1);
  TokenScore score;
  score.token = 66;
  score.logprobs.logprob = -INFINITY;
  score.logprobs.best = {{67, NAN}};
  result.choices[0].scores = {score};
  const Json json =
      Json::parse(answer_body(make_completion_head(call), call, runner.context, result));
  CHECK(json["choices"][0]["logprobs"]["token_logprobs"][0] == -9999.0);
  CHECK(json["choices"][0]["logprobs"]["top_logprobs"][0]["B"] == -9999.0);
}

TEST_CASE("token ids come on request, and are all there is without a tokenizer") {
  Runner runner(say("ab"));
  runner.context.tokenizer = nullptr;
  const Json choice = runner.answer({{"prompt", {5, 7}},
                                     {"max_tokens", 3},
                                     {"return_token_ids", true},
                                     {"logprobs", 1},
                                     {"echo", true}})["choices"][0];
  CHECK(choice["text"] == "");
  CHECK(choice["prompt_token_ids"] == Json({5, 7}));
  CHECK(choice["token_ids"] == Json({'a' + 1, 'b' + 1, 'a' + 1}));
  CHECK(choice["logprobs"]["tokens"][2] == "token_id:98");
}

TEST_CASE("special tokens are skipped unless asked for") {
  FakeScheduler::Options options;
  options.token = [](const Request&, int64_t t) { return t % 2 == 0 ? 0 : 'a' + 1; };
  Runner runner(options);
  Json body = {{"prompt", "x"}, {"max_tokens", 4}, {"ignore_eos", true}};
  CHECK(runner.answer(body)["choices"][0]["text"] == "aa");
  body["skip_special_tokens"] = false;
  Runner second(options);
  CHECK(second.answer(body)["choices"][0]["text"] == "</s>a</s>a");
}

TEST_CASE("an echo is the prompt as it was written, special tokens included") {
  FakeScheduler::Options options;
  options.token = [](const Request&, int64_t t) { return t % 2 == 0 ? 0 : 'a' + 1; };
  Runner runner(options);
  Json body = {{"prompt", "x</s>y"},
               {"max_tokens", 2},
               {"ignore_eos", true},
               {"echo", true},
               {"logprobs", 0}};
  const Json choice = runner.answer(body)["choices"][0];
  CHECK(choice["text"] == "x</s>ya");
  CHECK(choice["logprobs"]["tokens"] == Json({"</s>", "x", "</s>", "y", "</s>", "a"}));
  CHECK(choice["logprobs"]["text_offset"] == Json({0, 0, 1, 5, 6, 6}));
}

TEST_CASE("streamed pieces join to the whole answer") {
  const Json body = {{"prompt", {"a", "b"}},    {"n", 2},        {"max_tokens", 20},
                     {"temperature", 0},        {"logprobs", 1}, {"echo", true},
                     {"return_token_ids", true}};
  Runner whole;
  const Json expected = whole.answer(body)["choices"];
  Runner streamed;
  Json stream_body = body;
  stream_body["stream"] = true;
  streamed.start(stream_body);
  const CompletionResult result = streamed.finish();
  CHECK(result.choices.empty());
  CHECK(result.usage.generated_tokens == 80);
  Json joined = Json::array({Json(), Json(), Json(), Json()});
  for (const ChoiceText& piece : streamed.pieces) {
    const Json chunk = Json::parse(
        answer_chunk(make_completion_head(streamed.call), streamed.call, streamed.context, piece));
    REQUIRE(chunk["choices"].size() == 1);
    const Json& part = chunk["choices"][0];
    Json& target = joined[part["index"].get<size_t>()];
    if (target.is_null()) {
      target = part;
      continue;
    }
    target["text"] = target["text"].get<std::string>() + part["text"].get<std::string>();
    for (const auto& id : part["token_ids"]) target["token_ids"].push_back(id);
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      for (const auto& entry : part["logprobs"][list]) target["logprobs"][list].push_back(entry);
    }
    target["finish_reason"] = part["finish_reason"];
    CHECK_FALSE(part.contains("prompt_token_ids"));
  }
  CHECK(joined == expected);
}

TEST_CASE("all sequences are submitted or none") {
  Runner runner;
  runner.engine.refuse_after(2, Status(Code::kCapacity, "full"));
  CompletionCall call = runner.parse({{"prompt", "x"}, {"n", 4}, {"max_tokens", 100}});
  auto started = CompletionRun::start(runner.engine, &runner.tokenizer, call, runner.events());
  REQUIRE(std::holds_alternative<ApiError>(started));
  CHECK(std::get<ApiError>(started).status == 429);
  CHECK(std::get<ApiError>(started).code == "queue_full");
  CHECK(runner.engine.wait_idle());
  CHECK(runner.engine.submitted() == 2);
  const std::lock_guard lock(runner.mutex);
  CHECK(runner.done == 0);
  CHECK(runner.pieces.empty());
}

TEST_CASE("a refusal says what it means to the caller") {
  const std::tuple<Code, int, const char*> cases[] = {
      {Code::kInvalidArgument, 400, "invalid_value"}, {Code::kInfeasible, 400, "invalid_value"},
      {Code::kCapacity, 429, "queue_full"},           {Code::kCancelled, 503, "shutting_down"},
      {Code::kDeviceLost, 503, "engine_error"},       {Code::kIoError, 500, "engine_error"},
  };
  for (const auto& [code, status, name] : cases) {
    const ApiError error = refused_by_scheduler(Status(code, "because"));
    CHECK(error.status == status);
    CHECK(error.code == name);
  }
}

TEST_CASE("one failing sequence fails the call once, and frees the others") {
  FakeScheduler::Options options;
  options.fail_after_tokens = 3;
  Runner runner(options);
  runner.start({{"prompt", {"a", "b", "c"}}, {"max_tokens", 100}});
  const CompletionResult result = runner.finish();
  REQUIRE(result.error);
  CHECK(result.error->status == 500);
  CHECK(result.error->code == "engine_error");
  CHECK(result.error->message.find("secret") == std::string::npos);
  CHECK(runner.engine.wait_idle());
  const std::lock_guard lock(runner.mutex);
  CHECK(runner.done == 1);
}

TEST_CASE("cancel ends every sequence and reports once") {
  Runner runner;
  runner.engine.hold();
  const auto run = runner.start({{"prompt", {"a", "b"}}, {"n", 3}, {"max_tokens", 100}});
  run->cancel();
  run->cancel();
  const CompletionResult result = runner.finish();
  CHECK(result.cancelled);
  CHECK(result.error);
  CHECK(runner.engine.wait_idle());
  CHECK(runner.engine.finished(FinishReason::kCancelled) == 6);
  const std::lock_guard lock(runner.mutex);
  CHECK(runner.done == 1);
}

// Computes the half of each prompt before submit() returns, and no more.
struct QuickScheduler final : Scheduler {
  const ModelShape& shape() const override { return runner.engine.shape(); }
  int64_t queue_max() const override { return runner.engine.queue_max(); }
  Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) override {
    sink->on_admitted();
    sink->on_prompt_progress(std::ssize(request.prompt) / 2);
    sinks.push_back(std::move(sink));
    return RequestId{sinks.size()};
  }
  void cancel(RequestId) override {}
  void drain(double) override {}
  SchedulerStats stats() const override { return {}; }

  Runner runner;
  std::vector<std::shared_ptr<TokenSink>> sinks;
};

TEST_CASE("a call's progress until all of it was submitted is told then") {
  QuickScheduler quick;
  const CompletionCall call = quick.runner.parse({{"prompt", {"abcdefg", "abc"}}, {"n", 2}});
  CompletionEvents events = quick.runner.events();
  std::vector<int64_t> processed;
  events.on_progress = [&](const PromptProgress& progress) {
    processed.push_back(progress.processed);
  };
  const auto run =
      CompletionRun::start(quick, quick.runner.context.tokenizer, call, std::move(events));
  REQUIRE(std::holds_alternative<std::shared_ptr<CompletionRun>>(run));
  CHECK(processed == std::vector<int64_t>{4 + 2});  // With </s> each
  for (const auto& sink : quick.sinks) sink->on_finish({});
}

TEST_CASE("events survive a run that nobody holds") {
  Runner runner;
  runner.start({{"prompt", "a"}, {"max_tokens", 50}}).reset();
  CHECK_FALSE(runner.finish().error);
}

}  // namespace
}  // namespace spillway::completion_run_test
