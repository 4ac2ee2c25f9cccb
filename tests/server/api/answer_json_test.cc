// Answers as JSON: both forms, whole and in chunks, with every optional field.
#include "server/api/answer_json.h"

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/server/api/api_support.h"

namespace spillway::answer_json_test {
namespace {

struct Fixture {
  FakeScheduler engine;
  Tokenizer tokenizer = byte_tokenizer();
  ApiContext context = fake_context(engine.shape(), &tokenizer);
  CompletionCall call;
  CompletionResult result;

  Fixture() {
    call.model = "fake-model";
    call.chat = true;
    call.requests.resize(2);
    for (Request& request : call.requests) request.prompt = {1, 2};
    for (int32_t i = 0; i < 2; ++i) {
      ChoiceText choice;
      choice.index = i;
      choice.text = i == 0 ? "Hello" : "\"ä\"";
      choice.tokens = {5, 6};
      choice.first = true;
      choice.finished = true;
      choice.hit_length = i == 1;
      if (i == 0) choice.stop_string = "x";
      result.choices.push_back(choice);
    }
    result.usage.prompt_tokens = 3;
    result.usage.generated_tokens = 4;
  }

  Json whole() { return Json::parse(answer_body({"id-1", 7}, call, context, result)); }
  Json chunk(const ChoiceText& piece) {
    return Json::parse(answer_chunk({"id-1", 7}, call, context, piece));
  }
};

TokenScore score(int32_t token, float logprob) {
  TokenScore made;
  made.token = token;
  made.logprobs.logprob = logprob;
  made.logprobs.best = {{token, logprob}, {'b' + 1, -2.5f}};
  return made;
}

TEST_CASE("the answer to a chat is a chat.completion") {
  Fixture f;
  f.call.return_token_ids = true;
  const Json json = f.whole();
  CHECK(json["id"] == "id-1");
  CHECK(json["object"] == "chat.completion");
  CHECK(json["created"] == 7);
  CHECK(json["model"] == "fake-model");
  CHECK(json["choices"][0]["message"] ==
        Json{{"role", "assistant"}, {"content", "Hello"}, {"refusal", nullptr}});
  CHECK(json["choices"][0]["logprobs"].is_null());
  CHECK(json["choices"][0]["finish_reason"] == "stop");
  CHECK(json["choices"][0]["stop_reason"] == "x");
  CHECK(json["choices"][0]["token_ids"] == Json{5, 6});
  CHECK(json["prompt_token_ids"] == Json{1, 2});
  CHECK_FALSE(json["choices"][0].contains("prompt_token_ids"));
  CHECK(json["choices"][1]["finish_reason"] == "length");
  CHECK(json["choices"][1]["stop_reason"].is_null());
  CHECK(json["choices"][1]["message"]["content"] == "\"ä\"");
  CHECK(json["usage"]["total_tokens"] == 7);
  CHECK(make_completion_head(f.call).id.starts_with("chatcmpl-"));
}

TEST_CASE("the answer to a prompt is a text_completion") {
  Fixture f;
  f.call.chat = false;
  const Json json = f.whole();
  CHECK(json["object"] == "text_completion");
  CHECK(json["choices"][0]["text"] == "Hello");
  CHECK(json["choices"][0]["finish_reason"] == "stop");
  CHECK_FALSE(json["choices"][0].contains("token_ids"));
  CHECK(make_completion_head(f.call).id.starts_with("cmpl-"));
  f.call.request_id = "mine";
  CHECK(make_completion_head(f.call).id == "cmpl-mine");
}

TEST_CASE("a token of a chat has its bytes and the likeliest others") {
  Fixture f;
  f.call.logprobs = 2;
  // Byte 0xe2 alone is no character, </s> is special, and JSON knows no infinity.
  f.result.choices[0].scores = {score('a' + 1, -0.1f), score(0xe2 + 1, -1),
                                score(0, -std::numeric_limits<float>::infinity())};
  const Json json = f.whole()["choices"][0]["logprobs"];
  CHECK(json["refusal"].is_null());
  REQUIRE(json["content"].size() == 3);
  CHECK(json["content"][0] == Json{{"token", "a"},
                                   {"logprob", -0.1},
                                   {"bytes", {'a'}},
                                   {"top_logprobs",
                                    {{{"token", "a"}, {"logprob", -0.1}, {"bytes", {'a'}}},
                                     {{"token", "b"}, {"logprob", -2.5f}, {"bytes", {'b'}}}}}});
  CHECK(json["content"][1]["token"] == "bytes:\\xe2");
  CHECK(json["content"][1]["bytes"] == Json{0xe2});
  CHECK(json["content"][2]["token"] == "</s>");
  CHECK(json["content"][2]["logprob"] == -9999);
  f.call.tokens_as_ids = true;
  CHECK(f.whole()["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:98");
  f.context.tokenizer = nullptr;
  CHECK(f.whole()["choices"][0]["logprobs"]["content"][0]["bytes"].is_null());
}

TEST_CASE("a chunk of a chat has what is new, and the role once") {
  Fixture f;
  ChoiceText piece;
  piece.index = 1;
  piece.first = true;
  piece.text = "He";
  Json json = f.chunk(piece);
  CHECK(json["object"] == "chat.completion.chunk");
  CHECK(json["choices"][0]["index"] == 1);
  CHECK(json["choices"][0]["delta"] == Json{{"role", "assistant"}, {"content", "He"}});
  CHECK(json["choices"][0]["finish_reason"].is_null());
  CHECK_FALSE(json.contains("usage"));
  piece.first = false;
  CHECK(f.chunk(piece)["choices"][0]["delta"] == Json{{"content", "He"}});
  piece.text.clear();
  piece.finished = true;
  f.call.include_usage = true;
  json = f.chunk(piece);
  CHECK(json["choices"][0]["delta"] == Json::object());
  CHECK(json["choices"][0]["finish_reason"] == "stop");
  CHECK(json.at("usage").is_null());
  f.call.continuous_usage = true;
  piece.usage.generated_tokens = 2;
  CHECK(f.chunk(piece)["usage"]["completion_tokens"] == 2);
}

TEST_CASE("the prompt of a chat is beside the choices of a choice's first chunk") {
  Fixture f;
  f.call.return_token_ids = true;
  ChoiceText piece;
  piece.index = 1;
  piece.first = true;
  piece.tokens = {5};
  Json json = f.chunk(piece);
  CHECK(json["prompt_token_ids"] == Json{1, 2});
  CHECK(json["choices"][0]["token_ids"] == Json{5});
  CHECK_FALSE(json["choices"][0].contains("prompt_token_ids"));
  piece.first = false;
  json = f.chunk(piece);
  CHECK_FALSE(json.contains("prompt_token_ids"));
  piece.first = true;
  f.call.chat = false;
  json = f.chunk(piece);
  CHECK_FALSE(json.contains("prompt_token_ids"));
  CHECK(json["choices"][0]["prompt_token_ids"] == Json{1, 2});
}

TEST_CASE("chunks without choices have the object of their stream") {
  Fixture f;
  for (const bool chat : {false, true}) {
    f.call.chat = chat;
    const char* const object = chat ? "chat.completion.chunk" : "text_completion";
    const Json usage =
        Json::parse(answer_usage_chunk({"id-1", 7}, f.call, f.context, f.result.usage));
    CHECK(usage["object"] == object);
    CHECK(usage["choices"] == Json::array());
    CHECK(usage["usage"]["completion_tokens"] == 4);
    const Json ping = Json::parse(answer_ping_chunk({"id-1", 7}, f.call, f.context));
    CHECK(ping["object"] == object);
    CHECK(ping["choices"] == Json::array());
    CHECK(ping.at("usage").is_null());
  }
}

}  // namespace
}  // namespace spillway::answer_json_test
