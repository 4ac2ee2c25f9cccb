// parse_completion: what is accepted, and which error each wrong body gets.
#include <catch2/catch.hpp>
#include <cmath>

#include "server/batches/batch_line.h"
#include "tests/server/api/api_support.h"

namespace spillway::completion_parse_test {
namespace {

struct Fixture {
  FakeScheduler engine;
  Tokenizer tokenizer = byte_tokenizer();
  ApiContext context = fake_context(engine.shape(), &tokenizer);

  CompletionCall call(const std::string& body) {
    INFO(body);
    auto parsed = parse_completion(body, context);
    if (const auto* error = std::get_if<ApiError>(&parsed)) FAIL(error->message);
    return std::get<CompletionCall>(std::move(parsed));
  }
  CompletionCall with(const std::string& fields) {
    return call(R"({"prompt":"hi",)" + fields + "}");
  }
  ApiError error(const std::string& body) {
    INFO(body);
    auto parsed = parse_completion(body, context);
    REQUIRE(std::holds_alternative<ApiError>(parsed));
    const ApiError found = std::get<ApiError>(parsed);
    CHECK(found.message.size() < kErrorMessageBytesMax);
    return found;
  }
  ApiError error_with(const std::string& fields) {
    return error(R"({"prompt":"hi",)" + fields + "}");
  }
};

std::string repeat(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

TEST_CASE("a body with only a prompt gets the defaults") {
  Fixture f;
  const CompletionCall call = f.call(R"({"prompt":"hi"})");
  REQUIRE(call.requests.size() == 1);
  const Request& request = call.requests[0];
  CHECK(request.prompt == std::vector<int32_t>{0, 'h' + 1, 'i' + 1});  // </s> in front
  CHECK(request.max_tokens == 16);
  CHECK(request.sampling.temperature == 1.0f);
  CHECK(request.sampling.top_k == 0);
  CHECK(request.logprobs == -1);
  CHECK_FALSE(call.stream);
  CHECK(call.model == "fake-model");
  CHECK(call.ignored.empty());
}

TEST_CASE("all four prompt shapes are read") {
  Fixture f;
  using Ids = std::vector<int32_t>;
  CHECK(f.call(R"({"prompt":[5,7]})").requests[0].prompt == Ids{5, 7});
  CHECK(f.call(R"({"prompt":[5.0,7]})").requests[0].prompt == Ids{5, 7});
  // As at vLLM and llama-server, so that a chat rendered by the client is one.
  const auto special = f.call(R"({"prompt":"a</s>b"})").requests;
  CHECK(special.front().prompt == std::vector<int32_t>{0, 'a' + 1, 0, 'b' + 1});
  CHECK(f.call(R"({"prompt":"a</s>b","parse_special":false})").requests.front().prompt.size() == 7);
  const auto texts = f.call(R"({"prompt":["a","b"],"add_special_tokens":false})").requests;
  REQUIRE(texts.size() == 2);
  CHECK(texts[1].prompt == Ids{'b' + 1});
  const auto lists = f.call(R"({"prompt":[[1,2],[3]]})").requests;
  REQUIRE(lists.size() == 2);
  CHECK(lists[0].prompt == Ids{1, 2});
  CHECK(lists[1].prompt == Ids{3});
}

TEST_CASE("wrong prompts are named exactly") {
  Fixture f;
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {R"({})", "missing_required_parameter", "prompt"},
      {R"({"prompt":null})", "missing_required_parameter", "prompt"},
      {R"({"prompt":5})", "invalid_type", "prompt"},
      {R"({"prompt":{}})", "invalid_type", "prompt"},
      {R"({"prompt":true})", "invalid_type", "prompt"},
      {R"({"prompt":[]})", "invalid_value", "prompt"},
      {R"({"prompt":[[]]})", "invalid_value", "prompt[0]"},
      {R"({"prompt":[[1],[]]})", "invalid_value", "prompt[1]"},
      {R"({"prompt":["a",[1]]})", "invalid_type", "prompt"},
      {R"({"prompt":["a",1]})", "invalid_type", "prompt"},
      {R"({"prompt":[1,"a"]})", "invalid_type", "prompt[1]"},
      {R"({"prompt":[null]})", "invalid_type", "prompt"},
      {R"({"prompt":[true]})", "invalid_type", "prompt"},
      {R"({"prompt":[1,true]})", "invalid_type", "prompt[1]"},
      {R"({"prompt":[1.5]})", "invalid_value", "prompt[0]"},
      {R"({"prompt":[-1]})", "invalid_value", "prompt[0]"},
      {R"({"prompt":[300]})", "invalid_value", "prompt[0]"},
      {R"({"prompt":[[1],[2,4294967296]]})", "invalid_value", "prompt[1][1]"},
      {R"({"prompt":[18446744073709551615]})", "invalid_value", "prompt[0]"},
      {R"({"prompt":"","add_special_tokens":false})", "invalid_value", "prompt"},
  };
  for (const auto& [body, code, param] : cases) {
    const ApiError error = f.error(body);
    CHECK(error.status == 400);
    CHECK(error.code == code);
    CHECK(error.param == param);
  }
  CHECK(f.call(R"({"prompt":[299]})").requests[0].prompt[0] == 299);
}

TEST_CASE("every number field refuses what is out of range or no number") {
  Fixture f;
  const std::tuple<const char*, const char*, const char*> ranges[] = {
      // field, the largest good value, the first bad one
      {"max_tokens", "125", "-1"},
      {"temperature", "2", "2.001"},
      {"temperature", "0", "-0.001"},
      {"top_p", "1", "1.001"},
      {"top_p", "0.001", "0"},
      {"top_k", "-1", "-2"},
      {"min_p", "1", "1.001"},
      {"n", "64", "129"},
      {"n", "1", "0"},
      {"logprobs", "20", "21"},
      {"logprobs", "0", "-1"},
      {"presence_penalty", "-2", "-2.001"},
      {"frequency_penalty", "2", "2.001"},
      {"repetition_penalty", "0.5", "0"},
      {"min_tokens", "16", "17"},
      {"seed", "-1", "9223372036854775808"},
      {"priority", "-5", "2147483648"},
      {"truncate_prompt_tokens", "1", "0"},
      {"truncate_prompt_tokens", "-1", "-2"},
      {"sse_ping_interval", "-1", "-2"},
      {"best_of", "1", "-1"},
  };
  for (const auto& [field, good, bad] : ranges) {
    const std::string name = "\"" + std::string(field) + "\":";
    CHECK_NOTHROW(f.with(name + good));
    CHECK_NOTHROW(f.with(name + "null"));
    const ApiError error = f.error_with(name + bad);
    CHECK(error.code == "invalid_value");
    CHECK(error.param == field);
    for (const char* wrong : {"\"1\"", "[]", "{}", "true"}) {
      const ApiError type = f.error_with(name + wrong);
      CHECK(type.code == "invalid_type");
      CHECK(type.param == field);
    }
    CHECK(f.error_with(name + "1e400").code == "invalid_value");
    CHECK(f.error_with(name + "NaN").code == "invalid_json");
  }
  for (const char* field : {"max_tokens", "n", "top_k", "logprobs", "min_tokens", "seed"}) {
    const std::string name = "\"" + std::string(field) + "\":";
    CHECK(f.error_with(name + "1.5").code == "invalid_type");
    CHECK_NOTHROW(f.with(name + "1.0"));
    CHECK(f.error_with(name + "1e30").code == "invalid_value");
  }
}

TEST_CASE("flags and strings refuse other types") {
  Fixture f;
  for (const char* field :
       {"stream", "echo", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens",
        "add_special_tokens", "parse_special", "return_token_ids", "return_tokens_as_token_ids"}) {
    const std::string name = "\"" + std::string(field) + "\":";
    for (const char* wrong : {"0", "\"true\"", "[]"}) {
      const ApiError error = f.error_with(name + wrong);
      CHECK(error.code == "invalid_type");
      CHECK(error.param == field);
    }
    CHECK_NOTHROW(f.with(name + "null"));
  }
  CHECK(f.error_with(R"("model":1)").code == "invalid_type");
  CHECK(f.error_with(R"("user":{"a":1})").param == "user");
  CHECK(f.error_with(R"("user":1)").code == "invalid_type");
  CHECK_NOTHROW(f.with(R"("user":null)"));
  CHECK(f.error_with(R"("truncation_side":"up")").code == "invalid_value");
  CHECK(f.error_with(R"("request_id":"a b")").code == "invalid_value");
  CHECK(f.with(R"("request_id":"abc-1")").request_id == "abc-1");
}

TEST_CASE("the model must be served") {
  Fixture f;
  CHECK(f.with(R"("model":"alias")").model == "alias");
  const ApiError error = f.error_with(R"("model":"gpt-<script>")");
  CHECK(error.status == 404);
  CHECK(error.code == "model_not_found");
  CHECK(error.param == "model");
  CHECK(error.message.find("fake-model") != std::string::npos);
  CHECK(error.message.find("script") == std::string::npos);
}

TEST_CASE("unsupported parameters are refused by name, their empty forms are not") {
  Fixture f;
  const std::pair<const char*, const char*> cases[] = {
      {"suffix", "\"x\""},
      {"best_of", "2"},
      {"use_beam_search", "true"},
      {"length_penalty", "0.5"},
      {"allowed_token_ids", "[1]"},
      {"bad_words", "[\"x\"]"},
      {"logprob_token_ids", "[1]"},
      {"response_format", R"({"type":"json_object"})"},
      {"structured_outputs", R"({"regex":"a"})"},
      {"prompt_embeds", "\"x\""},
      {"guided_json", R"({"a":1})"},
      // The schema that any JSON meets, and options that are all left to the server.
      {"guided_json", "{}"},
      {"json_schema", "{}"},
      {"structured_outputs", "{}"},
      {"chat_template", "\"{{x}}\""},
  };
  for (const auto& [name, value] : cases) {
    const ApiError error = f.error_with("\"" + std::string(name) + "\":" + value);
    CHECK(error.status == 400);
    CHECK(error.code == "unsupported_parameter");
    CHECK(error.param == name);
    CHECK_NOTHROW(f.with("\"" + std::string(name) + "\":null"));
  }
  CHECK_NOTHROW(f.with(R"("use_beam_search":false,"best_of":1,"length_penalty":1,
                          "response_format":{"type":"text"},"bad_words":[],"suffix":"",
                          "chat_template_kwargs":{},"guided_choice":[])"));
}

TEST_CASE("a request may choose what its KV cache keeps") {
  Fixture f;
  CHECK(f.call(R"({"prompt":"hi"})").requests[0].kv.empty());
  const KvRuleChoice h2o =
      f.with(R"("kv_rule":"h2o","kv_heavy":0.05,"kv_recent":64,"kv_ratio_of":"prompt")")
          .requests[0]
          .kv;
  CHECK(h2o.kind == KvRuleKind::kH2o);
  CHECK(h2o.heavy == KvAmount{0, 0.05});
  CHECK(h2o.recent == KvAmount{64, 0});
  CHECK(h2o.ratio_of_prompt == true);
  const KvRuleChoice window = f.with(R"("kv_rule":"window","kv_sink":4)").requests[0].kv;
  CHECK(window.kind == KvRuleKind::kWindow);
  CHECK(window.keep == KvKeep(4));
  CHECK_FALSE(window.recent);
  const auto keep = [&](const std::string& fields) { return f.with(fields).requests[0].kv.keep; };
  CHECK(keep(R"("kv_rule":"h2o","kv_keep":4)") == KvKeep(4));
  CHECK(keep(R"("kv_rule":"h2o","kv_keep":0.1)") == KvKeep({0, 0.1}));
  CHECK(keep(R"("kv_rule":"window","kv_keep":"prompt")") == KvKeep::whole_prompt());
  CHECK(keep(R"("kv_rule":"window","kv_keep":4,"kv_sink":4)") == KvKeep(4));
  CHECK(keep(R"("kv_keep":0)") == KvKeep(0));
  const KvRuleChoice random = f.with(R"("kv_rule":"random","kv_heavy":9)").requests[0].kv;
  CHECK(random.kind == KvRuleKind::kRandom);
  CHECK(random.heavy == KvAmount{9, 0});
  CHECK(f.with(R"("kv_rule":"snap","kv_snap":"max")").requests[0].kv.snap == KvSnap::kMax);
  // What fits the rule of the server needs no kv_rule.
  f.context.kv_rule.kind = KvRuleKind::kH2o;
  CHECK(f.with(R"("kv_heavy":100)").requests[0].kv.heavy == KvAmount{100, 0});
}

TEST_CASE("KV fields that make no sense are refused by name") {
  Fixture f;
  const std::pair<const char*, const char*> cases[] = {
      {"kv_rule", R"("kv_rule":"h3o")"},
      {"kv_rule", R"("kv_rule":1)"},
      {"kv_heavy", R"("kv_heavy":0.1)"},
      {"kv_heavy", R"("kv_rule":"h2o","kv_heavy":1.5)"},
      {"kv_heavy", R"("kv_rule":"h2o","kv_heavy":-1)"},
      {"kv_recent", R"("kv_rule":"h2o","kv_recent":1.0)"},
      {"kv_heavy", R"("kv_rule":"window","kv_heavy":5)"},
      {"kv_recent", R"("kv_recent":5)"},
      {"kv_recent", R"("kv_rule":"h2o","kv_recent":"all")"},
      {"kv_recent", R"("kv_rule":"h2o","kv_recent":1048577)"},
      {"kv_sink", R"("kv_rule":"h2o","kv_sink":5)"},
      {"kv_sink", R"("kv_rule":"window","kv_sink":0.5)"},
      {"kv_keep", R"("kv_keep":4)"},
      {"kv_keep", R"("kv_rule":"full","kv_keep":"prompt")"},
      {"kv_keep", R"("kv_rule":"h2o","kv_keep":"all")"},
      {"kv_keep", R"("kv_rule":"h2o","kv_keep":1.0)"},
      {"kv_keep", R"("kv_rule":"h2o","kv_keep":[4])"},
      {"kv_sink", R"("kv_rule":"window","kv_keep":4,"kv_sink":5)"},
      {"kv_sink", R"("kv_rule":"window","kv_keep":"prompt","kv_sink":5)"},
      {"kv_ratio_of", R"("kv_rule":"h2o","kv_ratio_of":"half")"},
      {"kv_snap", R"("kv_rule":"snap","kv_snap":"median")"},
      {"kv_snap", R"("kv_rule":"h2o","kv_snap":"max")"},
      {"kv_ratio_of", R"("kv_ratio_of":"prompt")"},
      {"kv_rules", R"("kv_rules":"h2o")"},
      {"kv-rule", R"("kv-rule":"h2o")"},
  };
  for (const auto& [name, fields] : cases) {
    INFO(fields);
    const ApiError error = f.error_with(fields);
    CHECK(error.status == 400);
    CHECK(error.param == name);
  }
}

TEST_CASE("a refused KV field says which rule holds, and whose") {
  Fixture f;
  CHECK_THAT(f.error_with(R"("kv_heavy":0.1)").message,
             Catch::Contains("the rule is full, the server's"));
  CHECK_THAT(f.error_with(R"("kv_rule":"window","kv_heavy":5)").message,
             Catch::EndsWith("the rule is window."));
}

TEST_CASE("unknown names are listed, or refused when strict") {
  Fixture f;
  const CompletionCall call = f.with(R"("foo":1,"bar_baz":{},"user":"me","a b":1,"x\ny":2)");
  CHECK(call.ignored == std::vector<std::string>{"bar_baz", "foo"});
  CHECK(call.ignored_more == 2);
  std::string many;
  for (int i = 0; i < 100; ++i) many += "\"u" + std::to_string(i) + "\":1,";
  const CompletionCall listed = f.call("{" + many + R"("prompt":"hi"})");
  CHECK(listed.ignored.size() == 32);
  CHECK(listed.ignored_more == 68);
  // Ours are found behind any number of others.
  CHECK(f.error("{\"A\":1," + many + R"("kv_rules":"h2o","prompt":"hi"})").param == "kv_rules");
  CHECK(f.error(R"({"kv_rule ":"h2o","prompt":"hi"})").code == "unknown_parameter");
  f.context.limits.strict_params = true;
  const ApiError error = f.error_with(R"("foo":1)");
  CHECK(error.code == "unknown_parameter");
  CHECK(error.param == "foo");
  CHECK_NOTHROW(f.with(R"("user":"me")"));
  for (const char* odd : {"max tokens", "temperature ",
                          "gr\xc3\xb6\xc3\x9f"
                          "e",
                          "", "a\\nb"}) {
    INFO(odd);
    const ApiError refused = f.error_with("\"" + std::string(odd) + "\":1");
    CHECK(refused.code == "unknown_parameter");
    CHECK(refused.param.empty());
  }
  CHECK(f.error_with("\"" + repeat("x", 65) + "\":1").code == "unknown_parameter");
  CHECK(f.error("{" + many + R"("zz":1,"prompt":"hi"})").param == "u0");
  CHECK(f.error_with(R"("stream":true,"stream_options":{"x":1})").param == "stream_options.x");
}

TEST_CASE("a key that occurs twice is refused by its name") {
  Fixture f;
  const auto param_of = [&](const std::string& fields) {
    const ApiError error = f.error_with(fields);
    CHECK(error.code == "duplicate_key");
    CHECK(error.status == 400);
    CHECK(error.message.find("'" + error.param + "' occurs twice") != std::string::npos);
    return error.param;
  };
  CHECK(param_of(R"("max_tokens":1,"max_tokens":5)") == "max_tokens");
  CHECK(param_of(R"("max_tokens":1,"max_\u0074okens":1)") == "max_tokens");
  CHECK(param_of(R"("logit_bias":{"5":1,"5":2})") == "logit_bias.5");
  CHECK(
      param_of(R"("stream":true,"stream_options":{"include_usage":true,"include_usage":false})") ==
      "stream_options.include_usage");
  CHECK(param_of(R"("x":[[],[{"a":1},{"b":1,"b":2}]])") == "x[1][1].b");
  CHECK(param_of(R"("a b":1,"a b":2)") == "?");
  CHECK_NOTHROW(f.with(R"("x":{"prompt":1},"y":[{"a":1},{"a":1}])"));
}

TEST_CASE("a key that occurs twice in a batch line is refused by its name") {
  Fixture f;
  const auto error_of = [&](const std::string& text) {
    const BatchLine line = read_batch_line({1, text, false}, f.context);
    REQUIRE(line.error);
    return *line.error;
  };
  const ApiError inner = error_of(R"({"custom_id":"a","body":{"prompt":"a","seed":1,"seed":2}})");
  CHECK(inner.code == "duplicate_key");
  CHECK(inner.param == "body.seed");
  CHECK(error_of(R"({"custom_id":"a","custom_id":"b","body":{"prompt":"a"}})").param ==
        "custom_id");
  CHECK(error_of("[1]").message == "The line must be a JSON object.");
}

TEST_CASE("a number that no double holds is refused by its field") {
  Fixture f;
  for (const char* number : {"1e400", "-1e400"}) {
    const ApiError error = f.error_with(R"("temperature":)" + std::string(number));
    CHECK(error.param == "temperature");
    CHECK(error.code == "invalid_value");
  }
  CHECK(f.error_with(R"("logit_bias":{"5":1e999})").param == "logit_bias.5");
  CHECK(f.error(R"({"prompt":[1,2,1e999]})").param == "prompt[2]");
  CHECK(f.error("1e400").code == "invalid_json");
  CHECK(f.error(std::string("{\"prompt\":\"a\"}\0x", 17)).code == "invalid_json");
}

TEST_CASE("JSON is read strictly and within bounds") {
  Fixture f;
  for (const std::string& bad :
       {std::string(""), std::string("{"), std::string("nonsense"),
        std::string("{\"prompt\":\"a\"} x"), std::string("{\"prompt\":\"\xff\"}"),
        std::string("{\"prompt\":\"\\ud800\"}"), std::string("{'prompt':'a'}"),
        std::string("{\"prompt\":\"a\",}")}) {
    const ApiError error = f.error(bad);
    CHECK(error.code == "invalid_json");
    CHECK(error.message.find("byte") != std::string::npos);
  }
  CHECK(f.error("[]").code == "invalid_type");
  CHECK(f.error("\"prompt\"").code == "invalid_type");
  // The outer object is level 1.
  const auto nested = [](size_t levels) {
    return R"({"prompt":"a","x":)" + repeat("[", levels) + repeat("]", levels) + "}";
  };
  CHECK_NOTHROW(f.call(nested(31)));
  CHECK(f.error(nested(32)).code == "invalid_json");
  CHECK(f.error(repeat("[", 10'000'000)).code == "invalid_json");
  CHECK_NOTHROW(f.call(R"({"prompt":"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"[[["})"));
  f.context.limits.json_values_max = 5;
  CHECK_NOTHROW(f.call(R"({"prompt":[1,2]})"));
  CHECK(f.error(R"({"prompt":[1,2,3,4]})").code == "invalid_json");
}

TEST_CASE("prompt and completion must fit the context") {
  Fixture f;                         // 128 positions
  const std::string text(100, 'x');  // 101 tokens with </s>
  CHECK_NOTHROW(f.call(R"({"prompt":")" + text + R"(","max_tokens":27})"));
  const ApiError error = f.error(R"({"prompt":")" + text + R"(","max_tokens":28})");
  CHECK(error.status == 400);
  CHECK(error.code == "context_length_exceeded");
  CHECK(error.param == "prompt");
  CHECK(error.message ==
        "This model's maximum context length is 128 tokens. However, you requested 129 tokens (101 "
        "in the prompt, 28 in the completion). Please reduce the length of the prompt or "
        "completion.");
  const Json json = Json::parse(error.json());
  CHECK(json["error"]["n_prompt_tokens"] == 101);
  CHECK(json["error"]["n_ctx"] == 128);
  // Without max_tokens the default shrinks to what fits.
  CHECK(f.call(R"({"prompt":")" + std::string(120, 'x') + R"("})").requests[0].max_tokens == 7);
  CHECK(f.error(R"({"prompt":")" + std::string(127, 'x') + R"("})").code ==
        "context_length_exceeded");
  // A text that cannot fit is refused before it is tokenised.
  CHECK(f.error(R"({"prompt":")" + std::string(1 << 20, 'x') + R"("})").code ==
        "context_length_exceeded");
}

TEST_CASE("prompts are truncated on request") {
  Fixture f;
  using Ids = std::vector<int32_t>;
  const std::string base = R"({"prompt":"abcdef","truncate_prompt_tokens":3)";
  CHECK(f.call(base + "}").requests[0].prompt == Ids{0, 'e' + 1, 'f' + 1});  // </s> stays
  CHECK(f.call(base + R"(,"truncation_side":"right"})").requests[0].prompt ==
        Ids{0, 'a' + 1, 'b' + 1});
  CHECK(f.call(R"({"prompt":[5,6,7,8],"truncate_prompt_tokens":2})").requests[0].prompt ==
        Ids{7, 8});
  const std::string text(500, 'x');
  CHECK(f.call(R"({"prompt":")" + text + R"(","truncate_prompt_tokens":-1,"max_tokens":28})")
            .requests[0]
            .prompt.size() == 100);
}

TEST_CASE("fields that depend on each other are checked together") {
  Fixture f;
  CHECK(f.error_with(R"("min_tokens":17)").param == "min_tokens");
  CHECK(f.error_with(R"("min_tokens":17,"max_tokens":null)").param == "min_tokens");
  CHECK_NOTHROW(f.with(R"("min_tokens":17,"max_tokens":17)"));
  CHECK(f.error_with(R"("stream_options":{"include_usage":true})").param == "stream_options");
  CHECK(f.error_with(R"("stream":true,"stream_options":5)").param == "stream_options");
  CHECK(f.error_with(R"("stream":true,"stream_options":{"include_usage":1})").param ==
        "stream_options.include_usage");
  const CompletionCall call = f.with(R"("stream":true,"stream_options":{})");
  CHECK(call.include_usage);
  CHECK_FALSE(call.continuous_usage);
}

TEST_CASE("one request cannot ask for too many sequences") {
  Fixture f;
  f.context.limits.sequences_max = 4;
  CHECK(f.call(R"({"prompt":["a","b"],"n":2})").requests.size() == 4);
  CHECK(f.error(R"({"prompt":["a","b"],"n":3})").param == "n");
  CHECK(f.call(R"({"prompt":["a","b","c","d"]})").requests.size() == 4);
  CHECK(f.error(R"({"prompt":["a","b","c","d","e"]})").param == "prompt");
  std::string many = R"(["a")";
  for (int i = 0; i < 100'000; ++i) many += R"(,"a")";
  CHECK(f.error(R"({"prompt":)" + many + "]}").param == "prompt");
}

TEST_CASE("stop strings and tokens have bounds") {
  Fixture f;
  CHECK(f.with(R"("stop":"x")").stop == std::vector<std::string>{"x"});
  CHECK(f.with(R"("stop":[])").stop.empty());
  CHECK(f.error_with(R"("stop":"")").param == "stop");
  CHECK(f.error_with(R"("stop":["a",""])").param == "stop[1]");
  CHECK(f.error_with(R"("stop":["a",1])").code == "invalid_type");
  CHECK(f.error_with(R"("stop":{"a":1})").code == "invalid_type");
  const auto list = [](const std::string& item, size_t count) {
    return "[" + item + repeat("," + item, count - 1) + "]";
  };
  CHECK(f.with("\"stop\":" + list("\"a\"", 64)).stop.size() == 64);
  CHECK(f.error_with("\"stop\":" + list("\"a\"", 65)).param == "stop");
  CHECK_NOTHROW(f.with("\"stop\":\"" + std::string(256, 'a') + "\""));
  CHECK(f.error_with("\"stop\":\"" + std::string(257, 'a') + "\"").param == "stop");
  CHECK(f.with(R"("stop_token_ids":[7,8])").requests[0].stop_tokens == std::vector<int32_t>{7, 8});
  CHECK(f.error_with(R"("stop_token_ids":[300])").param == "stop_token_ids[0]");
  CHECK(f.error_with(R"("stop_token_ids":7)").code == "invalid_type");
  CHECK_NOTHROW(f.with("\"stop_token_ids\":" + list("1", 256)));
  CHECK(f.error_with("\"stop_token_ids\":" + list("1", 257)).param == "stop_token_ids");
}

TEST_CASE("logit_bias has bounds") {
  Fixture f;
  const auto bias = f.with(R"("logit_bias":{"5":1.5,"6":-1000})").requests[0].sampling.logit_bias;
  CHECK(bias == std::vector<std::pair<int32_t, float>>{{5, 1.5f}, {6, -100.0f}});
  for (const char* key : {"-1", "300", "a", "", " 1", "+1", "1.0", "99999999999999999999"}) {
    CHECK(f.error_with("\"logit_bias\":{\"" + std::string(key) + "\":1}").param == "logit_bias");
  }
  CHECK(f.error_with(R"("logit_bias":{"1":"2"})").code == "invalid_type");
  CHECK(f.error_with(R"("logit_bias":[1])").code == "invalid_type");
  const auto entries = [](int count) {
    std::string text = "\"0\":1";
    for (int i = 1; i < count; ++i) {
      text +=
          ",\"" + std::string(static_cast<size_t>(i / 300), '0') + std::to_string(i % 300) + "\":1";
    }
    return "\"logit_bias\":{" + text + "}";
  };
  CHECK(f.with(entries(300)).requests[0].sampling.logit_bias.size() == 300);
  CHECK(f.error_with(entries(301)).param == "logit_bias");
}

TEST_CASE("sampling fields reach the request") {
  Fixture f;
  const SamplingParams s =
      f.with(R"("temperature":0.5,"top_p":0.25,"top_k":7,"min_p":0.125,"repetition_penalty":1.5,
                "presence_penalty":-1,"frequency_penalty":2,"seed":9)")
          .requests[0]
          .sampling;
  CHECK(s.temperature == 0.5f);
  CHECK(s.top_p == 0.25f);
  CHECK(s.top_k == 7);
  CHECK(s.min_p == 0.125f);
  CHECK(s.repetition_penalty == 1.5f);
  CHECK(s.presence_penalty == -1.0f);
  CHECK(s.frequency_penalty == 2.0f);
  CHECK(s.seed == 9);
  CHECK(f.with(R"("top_k":-1)").requests[0].sampling.top_k == 0);
  CHECK(f.with(R"("temperature":1e-6)").requests[0].sampling.temperature == 0.0f);
  CHECK(f.error_with(R"("top_p":1e-60)").param == "top_p");
}

TEST_CASE("samples of a seeded request have seeds of their own, the same each time") {
  Fixture f;
  const auto a = f.with(R"("seed":9,"n":4)").requests;
  const auto b = f.with(R"("seed":9,"n":4)").requests;
  CHECK(a[0].sampling.seed == 9);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(a[i].sampling.seed == b[i].sampling.seed);
    for (size_t j = 0; j < i; ++j) CHECK(a[i].sampling.seed != a[j].sampling.seed);
  }
  for (const char* none : {"null", "-1"}) {
    const auto random = f.with(R"("n":2,"seed":)" + std::string(none)).requests;
    CHECK(random[0].sampling.seed != random[1].sampling.seed);
    CHECK(random[0].sampling.seed !=
          f.with(R"("seed":)" + std::string(none)).requests[0].sampling.seed);
  }
}

TEST_CASE("prompts expand prompt-major") {
  Fixture f;
  const CompletionCall call = f.call(R"({"prompt":[[1],[2]],"n":2,"echo":true,"logprobs":3})");
  REQUIRE(call.requests.size() == 4);
  CHECK(call.prompts() == 2);
  CHECK(call.requests[1].prompt[0] == 1);
  CHECK(call.requests[2].prompt[0] == 2);
  CHECK(call.requests[3].logprobs == 3);
  CHECK(call.requests[3].prompt_logprobs == 3);
}

TEST_CASE("a model without a tokenizer takes token ids only") {
  Fixture f;
  f.context.tokenizer = nullptr;
  CHECK(f.call(R"({"prompt":[1]})").requests[0].prompt[0] == 1);
  CHECK(f.error(R"({"prompt":"a"})").param == "prompt");
  CHECK(f.error(R"({"prompt":[1],"stop":"a"})").param == "stop");
  CHECK_THAT(f.error(R"({"prompt":"a"})").message, Catch::Contains("has no tokenizer files"));
  f.context.tokenizer_error = "tokenizer.json: decoder: WordPiece";
  CHECK_THAT(f.error(R"({"prompt":"a"})").message,
             Catch::Contains("cannot be used: tokenizer.json: decoder: WordPiece"));
}

TEST_CASE("an error is valid JSON whatever its message holds") {
  ApiError error = invalid_value("x", "\xff\"\n" + std::string(5000, 'a'));
  const Json json = Json::parse(error.json());
  CHECK(json["error"]["message"].get<std::string>().size() <= kErrorMessageBytesMax + 2);
  CHECK(json["error"]["param"] == "x");
  error.param = "";
  CHECK(Json::parse(error.json())["error"]["param"].is_null());
}

}  // namespace
}  // namespace spillway::completion_parse_test
