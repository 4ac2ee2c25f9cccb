// Which template a model's files give, and what it gets to see.
#include "server/chat/chat_template.h"

#include <catch2/catch.hpp>

namespace spillway::chat_template_test {
namespace {

using Files = std::vector<std::pair<std::string, std::string>>;

const std::vector<ChatMessage> kTalk = {{"system", "Be brief."}, {"user", " Hi "}};

std::string text_of(const Files& files, bool prompt = true) {
  const ChatTemplate chat = ChatTemplate::load(files);
  INFO(chat.status().message());
  REQUIRE(chat.status().ok());
  return chat.render(kTalk, prompt).value();
}

TEST_CASE("a model without a template gets plain turns") {
  const ChatTemplate chat = ChatTemplate::load({});
  CHECK_FALSE(chat.is_own());
  CHECK(text_of({}) == "Be brief.\n\nUser: Hi\n\nAssistant:");
  CHECK(text_of({{"tokenizer_config.json", R"({"chat_template": null})"}}, false) ==
        "Be brief.\n\nUser: Hi\n\n");
}

TEST_CASE("the template is a file, a text, or the default of a list") {
  const std::pair<std::string, std::string> file = {"chat_template.jinja", "file"};
  const std::pair<std::string, std::string> text = {"tokenizer_config.json",
                                                    R"({"chat_template": "text"})"};
  CHECK(text_of({file, text}) == "file");
  CHECK(text_of({text}) == "text");
  CHECK(ChatTemplate::load(Files{text}).file() == "tokenizer_config.json");
  CHECK(ChatTemplate::load(Files{text, file}).file() == "chat_template.jinja");
  CHECK(text_of({{"tokenizer_config.json",
                  R"({"chat_template": [{"name": "tool_use", "template": "no"},
                                        {"name": "default", "template": "yes"}]})"}}) == "yes");
}

TEST_CASE("a template sees the messages, the special tokens and no tools") {
  const Files files = {
      {"chat_template.jinja",
       "{{ bos_token }}{% for m in messages %}[{{ m.role }}|{{ m['content'] }}]{% endfor %}{{ "
       "eos_token }}"
       "{{ pad_token is defined }}{{ tools is none }}{{ documents is none }}{{ "
       "add_generation_prompt }}"},
      {"tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "pad_token": null})"},
      {"special_tokens_map.json", R"({"bos_token": "no", "eos_token": "</s>"})"}};
  CHECK(text_of(files) == "<s>[system|Be brief.][user| Hi ]</s>FalseTrueTrueTrue");
}

TEST_CASE("a template that cannot be used says why, and nothing else fails") {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"chat_template": "\n{{ x|batch }}"})",
       "the chat template in tokenizer_config.json: line 2: the filter 'batch' is not supported"},
      {R"({"chat_template": [{"name": "rag", "template": ""}]})",
       "tokenizer_config.json: chat_template lists no template with the name default"},
      {R"({"chat_template": 7})",
       "tokenizer_config.json: chat_template is neither a text nor a list of templates"},
      {"{", "tokenizer_config.json: is not valid JSON"}};
  for (const auto& [config, wanted] : cases) {
    const ChatTemplate chat = ChatTemplate::load(Files{{"tokenizer_config.json", config}});
    CHECK(std::string(chat.status().message()).find(wanted) == 0);
    CHECK(chat.render(kTalk, true).status().message() == chat.status().message());
  }
  const ChatTemplate picky = ChatTemplate::load(
      Files{{"chat_template.jinja",
             "{{ raise_exception('no system') if messages[0].role == 'system' }}"}});
  CHECK(picky.render(kTalk, true).status().message() ==
        "the chat template: line 1: the template refuses this: 'no system'");
  CHECK(picky.render({{"user", "Hi"}}, true).ok());
}

}  // namespace
}  // namespace spillway::chat_template_test
