// Texts and chats to tokens and back, over HTTP.
#include <catch2/catch.hpp>

#include "tests/server/api/api_support.h"
#include "tests/server/api/check_error.h"

namespace spillway::tokenize_test {
namespace {

using test::check_error;

constexpr const char* kInvalid = "invalid_request_error";

TEST_CASE("tokenize and detokenize are each other's inverse") {
  TestServer test;
  const auto tokens = [&](const Json& body) {
    return Json::parse(test.post("/tokenize", body).body);
  };
  Json answer = tokens({{"prompt", "h\xc3\xa9"}});
  CHECK(answer["tokens"] == Json({0, 'h' + 1, 0xc3 + 1, 0xa9 + 1}));
  CHECK(answer["count"] == 4);
  CHECK(answer["max_model_len"] == 128);
  CHECK(answer["token_strs"].is_null());
  answer = tokens({{"content", "hi"}, {"add_special", false}, {"return_token_strs", true}});
  CHECK(answer["tokens"] == Json({'h' + 1, 'i' + 1}));
  CHECK(tokens({{"content", "h"}})["tokens"] == Json({'h' + 1}));
  CHECK(tokens({{"content", "h"}, {"add_special", true}})["tokens"] == Json({0, 'h' + 1}));
  CHECK(tokens({{"prompt", "h"}, {"add_special_tokens", false}})["tokens"] == Json({'h' + 1}));
  CHECK(answer["token_strs"] == Json({"h", "i"}));
  const HttpAnswer text = test.post("/detokenize", {{"tokens", {'h' + 1, 0xc3 + 1, 0xa9 + 1}}});
  CHECK(Json::parse(text.body)["prompt"] == "h\xc3\xa9");
  CHECK(Json::parse(text.body)["content"] == "h\xc3\xa9");
  CHECK(Json::parse(test.post("/detokenize", {{"tokens", Json::array()}}).body) ==
        Json{{"prompt", ""}, {"content", ""}});
  check_error(test.post("/tokenize", Json::object()), 400, kInvalid, "missing_required_parameter");
  check_error(test.post("/tokenize", {{"prompt", 1}}), 400, kInvalid, "invalid_type");
  check_error(test.post("/tokenize", {{"prompt", "a"}, {"model", "x"}}), 404, kInvalid,
              "model_not_found");
  check_error(test.post("/detokenize", {{"tokens", {300}}}), 400, kInvalid, "invalid_value");
  check_error(test.post("/detokenize", {{"tokens", "x"}}), 400, kInvalid, "invalid_type");
  TestServer::Options options;
  options.with_tokenizer = false;
  TestServer without(options);
  check_error(without.post("/tokenize", {{"prompt", "a"}}), 501, kInvalid, "no_tokenizer");
  CHECK(without.post("/v1/completions", {{"prompt", {5, 7}}}).status == 200);
}

TEST_CASE("tokenize takes special tokens in a text, and chats") {
  TestServer test;
  const auto tokens = [&](const Json& body) {
    return Json::parse(test.post("/tokenize", body).body)["tokens"];
  };
  // lm-eval's remote tokenizer finds the id of the end token so.
  CHECK(tokens({{"prompt", "</s>a"}, {"add_special_tokens", false}}) == Json({0, 'a' + 1}));
  CHECK(tokens({{"prompt", "</s>a"}, {"add_special_tokens", false}, {"parse_special", false}})
            .size() == 5);
  const Json message = {{"role", "user"}, {"content", "hi"}};
  const Json chat = {{"messages", {message}}};
  CHECK(tokens(chat) == tokens({{"prompt", "User: hi\n\nAssistant:"}}));
  Json bare = chat;
  bare["add_generation_prompt"] = false;
  CHECK(tokens(bare) == tokens({{"prompt", "User: hi\n\n"}}));
  // As long a text as without a template, though this model has 128 positions.
  const std::string text(200'000, 'x');
  CHECK(tokens({{"messages", {{{"role", "user"}, {"content", text}}}}}) ==
        tokens({{"prompt", "User: " + text + "\n\nAssistant:"}}));
  const std::string longest(size_t{4} << 20, 'x');
  check_error(test.post("/tokenize", {{"messages", {{{"role", "user"}, {"content", longest}}}}}),
              400, kInvalid, "invalid_value");
  check_error(test.post("/tokenize", {{"messages", {message}}, {"prompt", "a"}}), 400, kInvalid,
              "invalid_value");
  check_error(test.post("/tokenize", {{"messages", {{{"role", "x"}}}}}), 400, kInvalid,
              "unsupported_parameter");
}

TEST_CASE("with_pieces gives each token's text, or its bytes where they are none") {
  TestServer test;
  const HttpAnswer answer =
      test.post("/tokenize", {{"content", "</s>h\xc3\xa9"}, {"with_pieces", true}});
  CHECK(Json::parse(answer.body)["tokens"] == Json{{{"id", 0}, {"piece", "</s>"}},
                                                   {{"id", 'h' + 1}, {"piece", "h"}},
                                                   {{"id", 0xc3 + 1}, {"piece", {0xc3}}},
                                                   {{"id", 0xa9 + 1}, {"piece", {0xa9}}}});
}

TEST_CASE("names that mean nothing to tokenize and detokenize are listed, or refused when strict") {
  const Json text = {{"prompt", "a"}, {"foo", 1}};
  const Json tokens = {{"tokens", {5}}, {"foo", 1}};
  TestServer test;
  CHECK(test.post("/tokenize", text).fields.at("x-ignored-parameters") == "foo");
  CHECK(test.post("/detokenize", tokens).fields.at("x-ignored-parameters") == "foo");
  CHECK(test.post("/tokenize", {{"prompt", "a"}}).fields.count("x-ignored-parameters") == 0);
  TestServer::Options options;
  options.strict_params = true;
  TestServer strict(options);
  check_error(strict.post("/tokenize", text), 400, kInvalid, "unknown_parameter");
  check_error(strict.post("/detokenize", tokens), 400, kInvalid, "unknown_parameter");
}

TEST_CASE("tokenizer_info names the special tokens and the template") {
  TestServer test;
  const Json info = Json::parse(HttpClient(test.server->port()).get("/tokenizer_info").body);
  CHECK(info["eos_token"] == "</s>");
  CHECK(info["add_bos_token"] == true);
  CHECK(info["chat_template"] == std::string(kPlainChatTemplate));
  CHECK(info["model_max_length"] == 128);
  TestServer::Options options;
  options.with_tokenizer = false;
  TestServer without(options);
  check_error(HttpClient(without.server->port()).get("/tokenizer_info"), 501, kInvalid,
              "no_tokenizer");
}

}  // namespace
}  // namespace spillway::tokenize_test
