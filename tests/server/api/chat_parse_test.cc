// parse_chat: what is accepted, and which error each wrong body gets.
#include "server/api/chat_parse.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "server/chat/chat_template.h"
#include "tests/server/api/api_support.h"

namespace spillway::chat_parse_test {
namespace {

using Files = std::vector<std::pair<std::string, std::string>>;

std::vector<int32_t> ids_of(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c) + 1);
  return ids;
}

struct Fixture {
  FakeScheduler engine;
  Tokenizer tokenizer = byte_tokenizer();
  ChatTemplate chat;
  ApiContext context = fake_context(engine.shape(), &tokenizer);

  explicit Fixture(const std::string& text =
                       "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
                       "{{ '>' if add_generation_prompt }}")
      : chat(ChatTemplate::load(text.empty() ? Files() : Files{{"chat_template.jinja", text}})) {
    context.chat = &chat;
  }

  CompletionCall call(const std::string& body) {
    INFO(body);
    auto parsed = parse_chat(body, context);
    if (const auto* error = std::get_if<ApiError>(&parsed)) FAIL(error->message);
    return std::get<CompletionCall>(std::move(parsed));
  }
  ApiError error(const std::string& body) {
    INFO(body);
    auto parsed = parse_chat(body, context);
    REQUIRE(std::holds_alternative<ApiError>(parsed));
    const ApiError found = std::get<ApiError>(parsed);
    CHECK(found.message.size() < kErrorMessageBytesMax);
    CHECK(found.status == 400);
    return found;
  }
  CompletionCall with(const std::string& fields) {
    return call(R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}");
  }
  ApiError error_with(const std::string& fields) {
    return error(R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}");
  }
};

TEST_CASE("messages become the prompt that the template writes") {
  Fixture f;
  const CompletionCall call = f.call(
      R"({"messages":[{"role":"developer","content":"be"},{"role":"user","content":[{"type":"text",)"
      R"("text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":"","name":"x"}]})");
  REQUIRE(call.requests.size() == 1);
  CHECK(call.chat);
  CHECK(call.requests[0].prompt == ids_of("s:be;u:a\nb;a:;>"));  // No </s> in front
  CHECK(call.stop.empty());
  // All that fits: the fake model has few positions.
  CHECK(call.requests[0].max_tokens ==
        std::min<int64_t>(
            kChatTokensDefault,
            f.engine.shape().positions - static_cast<int64_t>(call.requests[0].prompt.size())));
  CHECK(f.with(R"("add_generation_prompt":false)").requests[0].prompt == ids_of("u:hi;"));
}

TEST_CASE("special tokens in the template's text are these tokens") {
  Fixture f("</s>{{ messages[0].content }}");
  CHECK(f.with(R"("seed":1)").requests[0].prompt == std::vector<int32_t>{0, 'h' + 1, 'i' + 1});
}

TEST_CASE("a model without a template gets plain turns, </s> in front, and a stop string") {
  Fixture f("");
  const CompletionCall call = f.with(R"("stop":"x")");
  std::vector<int32_t> wanted = ids_of("User: hi\n\nAssistant:");
  wanted.insert(wanted.begin(), 0);
  CHECK(call.requests[0].prompt == wanted);
  CHECK(call.stop == std::vector<std::string>{"x", "\nUser:"});
}

TEST_CASE("the other fields are those of completions") {
  Fixture f;
  const CompletionCall call = f.with(
      R"("max_completion_tokens":7,"temperature":0,"top_p":0.5,"n":2,"seed":3,"stop":["a","b"],)"
      R"("tools":[],"tool_choice":"none","mm_processor_kwargs":{},"logprobs":false,"top_logprobs":0,"modalities":["text"],)"
      R"("response_format":{"type":"text"},"user":"me","store":true)");
  REQUIRE(call.requests.size() == 2);
  CHECK(call.samples == 2);
  CHECK(call.requests[0].max_tokens == 7);
  CHECK(call.requests[0].sampling.top_p == 0.5f);
  CHECK(call.requests[0].sampling.seed == 3);
  CHECK(call.stop.size() == 2);
  CHECK(call.ignored == std::vector<std::string>{"store"});
  // Tools that are not to be called change nothing.
  CHECK(f.with(R"("tools":[{"type":"function"}],"tool_choice":"none")").requests[0].prompt ==
        call.requests[0].prompt);
  CHECK(f.with(R"("max_tokens":5)").requests[0].max_tokens == 5);
  CHECK(f.with(R"("max_tokens":5,"max_completion_tokens":5)").requests[0].max_tokens == 5);
}

TEST_CASE("logprobs of a chat are a switch and a number of others") {
  Fixture f;
  CHECK(f.with(R"("top_logprobs":0)").logprobs == -1);
  CHECK(f.with(R"("logprobs":true)").requests[0].logprobs == 0);
  const CompletionCall call = f.with(R"("logprobs":true,"top_logprobs":20)");
  CHECK(call.logprobs == 20);
  CHECK(call.requests[0].logprobs == 20);
  CHECK(call.requests[0].prompt_logprobs == -1);
}

TEST_CASE("what chats of other servers know is refused by its name") {
  Fixture f;
  const std::pair<const char*, const char*> cases[] = {
      {R"("tools":[{"type":"function"}])", "tools"},
      {R"("tools":[{"type":"function"}],"tool_choice":"auto")", "tools"},
      {R"("functions":[{}])", "functions"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("response_format":{"type":"json_object"})", "response_format"},
      {R"("logprobs":1)", "logprobs"},
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("modalities":["audio"])", "modalities"},
      {R"("web_search_options":{})", "web_search_options"},
      {R"("prediction":{})", "prediction"},
      {R"("json_schema":{})", "json_schema"},
      {R"("prompt":"a")", "prompt"},
      {R"("echo":true)", "echo"},
      {R"("chat_template":"{{ 1 }}")", "chat_template"},
      {R"("chat_template_kwargs":{"a":1})", "chat_template_kwargs"},
      {R"("continue_final_message":true)", "continue_final_message"},
      {R"("max_completion_tokens":-1)", "max_completion_tokens"},
      {R"("max_completion_tokens":1.5)", "max_completion_tokens"},
      {R"("max_completion_tokens":3,"max_tokens":4)", "max_completion_tokens"},
      {R"("temperature":9)", "temperature"},
      {R"("add_generation_prompt":1)", "add_generation_prompt"}};
  for (const auto& [fields, param] : cases) CHECK(f.error_with(fields).param == param);
  CHECK(f.error_with(R"("tools":[{"type":"function"}])").code == "unsupported_parameter");
}

TEST_CASE("a wrong message is named by its place") {
  Fixture f;
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":"hi"})", "messages"},
      {R"({"messages":[7]})", "messages[0]"},
      {R"({"messages":[{"content":"a"}]})", "messages[0].role"},
      {R"({"messages":[{"role":1,"content":"a"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"tool","content":"a"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user","content":"a","name":7}]})", "messages[0].name"},
      {R"({"messages":[{"role":"user","content":"a","function_call":{}}]})",
       "messages[0].function_call"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":null}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":7}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":[7]}]})",
       "messages[1].content[0]"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages[0].content[0].type"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
       "messages[0].content[0].text"},
      {R"({"messages":[{"role":"assistant","content":"a","tool_calls":[{}]}]})",
       "messages[0].tool_calls"}};
  for (const auto& [body, param] : cases) CHECK(f.error(body).param == param);
  std::string many = R"({"messages":[)";
  for (size_t i = 0; i <= kChatMessagesMax; ++i) {
    many += std::string(i > 0 ? "," : "") + R"({"role":"user","content":"a"})";
  }
  CHECK(f.error(many + "]}").param == "messages");
}

TEST_CASE("a chat that cannot fit the context says so, and names the messages") {
  Fixture f;  // 128 positions
  const auto chat_of = [](size_t bytes, const char* more) {
    return R"({"messages":[{"role":"user","content":")" + std::string(bytes, 'x') + R"("}])" +
           more + "}";
  };
  CHECK_NOTHROW(f.call(chat_of(100, R"(,"max_tokens":24)")));  // "u:", ";>"
  const ApiError error = f.error(chat_of(100, R"(,"max_tokens":25)"));
  CHECK(error.code == "context_length_exceeded");
  CHECK(error.param == "messages");
  CHECK(error.numbers.front() == std::pair<std::string, int64_t>("n_prompt_tokens", 104));
  // Refused before it is tokenised, and not as the template's fault.
  for (const size_t bytes : {size_t{70'000}, size_t{200'000}, size_t{8} << 20}) {
    const ApiError longer = f.error(chat_of(bytes, ""));
    CHECK(longer.code == "context_length_exceeded");
    CHECK(longer.param == "messages");
    CHECK(longer.message.starts_with("'messages' make a prompt of " + std::to_string(bytes + 4) +
                                     " bytes, which cannot fit this model's maximum context "
                                     "length of 128 tokens"));
  }
  // What the template leaves out does not count.
  Fixture last("{{ messages[-1].content[:5] }}");
  CHECK(last.call(chat_of(200'000, "")).requests[0].prompt == ids_of("xxxxx"));
  Fixture runaway("{% for i in range(100) %}{{ messages[0].content }}{% endfor %}");
  CHECK(runaway.error(chat_of(100'000, "")).code == "invalid_value");
}

TEST_CASE("unknown names in messages are refused when strict") {
  Fixture f;
  const auto with = [](const std::string& more, const std::string& in_part = "") {
    return R"({"messages":[{"role":"user","content":[{"type":"text","text":"hi")" + in_part + "}]" +
           more + "}]}";
  };
  CHECK_NOTHROW(f.call(with(R"(,"foo":1)", R"(,"bar":1)")));
  f.context.limits.strict_params = true;
  CHECK_NOTHROW(f.call(with(R"(,"name":"x","refusal":null,"tool_calls":[],"annotations":[])")));
  const std::pair<std::string, const char*> cases[] = {
      {with(R"(,"foo":1)"), "messages[0].foo"},
      {with(R"(,"foo":null)"), "messages[0].foo"},
      {with("", R"(,"bar":1)"), "messages[0].content[0].bar"},
      {with(R"(,"a b":1)"), ""}};
  for (const auto& [body, param] : cases) {
    const ApiError error = f.error(body);
    CHECK(error.code == "unknown_parameter");
    CHECK(error.param == param);
  }
}

TEST_CASE("what the template refuses is the messages' fault") {
  Fixture picky("{{ raise_exception('Roles\\n') }}");
  const ApiError refused = picky.error_with(R"("n":1)");
  CHECK(refused.param == "messages");
  CHECK(refused.message.find("line 1: the template refuses this: 'Roles\\x0a'") !=
        std::string::npos);
  Fixture broken("{{ x|batch }}");
  CHECK(broken.error_with(R"("n":1)").message.find("the filter 'batch'") != std::string::npos);
  Fixture empty("{{ '' }}");
  CHECK(empty.error_with(R"("n":1)").param == "messages");
  Fixture none;
  none.context.tokenizer = nullptr;
  CHECK(none.error_with(R"("n":1)").param == "messages");
  Fixture longer("{{ 'a' * 2000000 }}");
  CHECK(longer.error_with(R"("n":1)").param == "messages");
  Fixture fits_not("{{ 'a' * 5000 }}");
  fits_not.error_with(R"("max_tokens":1)");
}

}  // namespace
}  // namespace spillway::chat_parse_test
