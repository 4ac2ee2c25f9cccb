// Chats through the real program on the demo model: `generate --chat`, lines of a batch, `inspect`.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/golden.h"
#include "tests/support/places.h"
#include "tests/support/temp_directory.h"

namespace spillway::chat_test {
namespace {

using nlohmann::json;

std::string read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The demo model, and a copy of it with a chat template.
struct Place {
  test::TemporaryCache cache;
  TempDirectory directory;
  std::string demo = test::source_directory() + "/configs/demo";
  std::string chatty = directory.path() + "/chatty";

  Place() {
    std::filesystem::copy(demo, chatty);
    std::ofstream(chatty + "/chat_template.jinja")
        << "{{ bos_token }}{% for m in messages %}\n# {{ m.role }}\n{{ m.content|trim }}\n{% "
           "endfor %}";
  }

  // Standard output of the program; its log goes to a file.
  std::string run(const std::string& arguments) {
    const std::string out = directory.path() + "/out";
    INFO(arguments);
    CHECK(test::exit_of(test::program() + " " + arguments + " > " + out + " 2> " +
                        directory.path() + "/log") == 0);
    return read(out);
  }
};

const std::string kGreedy = " --temperature 0 --max-tokens 12 ";

TEST_CASE("generate --chat answers the user's message") {
  Place place;
  // Without a template of its own: plain turns, encoded as any prompt.
  const std::string plain =
      place.run("generate " + place.demo + kGreedy +
                "--prompt 'Be kind.\n\nUser: hello\n\nAssistant:' --stop '\nUser:'");
  CHECK(place.run("generate " + place.demo + kGreedy +
                  "--chat --system 'Be kind.' --prompt hello") == plain);
  // With one: its text; the start-of-text token is the template's, not the tokenizer's.
  const json own = json::parse(
      place.run("generate " + place.chatty + kGreedy + "--chat --prompt ' hello ' --json"));
  const json wanted = json::parse(
      place.run("generate " + place.demo + kGreedy + "--prompt '# user\nhello\n' --json"));
  CHECK(own["object"] == "chat.completion");
  CHECK(own["prompt_token_ids"] == wanted["choices"][0]["prompt_token_ids"]);
  CHECK(own["choices"][0]["message"]["content"] == wanted["choices"][0]["text"]);
  CHECK(test::exit_of(test::program() + " generate " + place.demo +
                      " --system a --prompt b > /dev/null 2>&1") == 2);
  CHECK(test::exit_of(test::program() + " generate " + place.demo +
                      " --chat --prompt-tokens 5 > /dev/null 2>&1") == 2);
}

TEST_CASE("a batch answers chat lines beside others") {
  Place place;
  const std::string input = place.directory.path() + "/in.jsonl";
  const std::string output = place.directory.path() + "/out.jsonl";
  const std::string sampling = R"("temperature":0,"return_token_ids":true)";
  std::ofstream(input)
      << R"({"custom_id":"c","method":"POST","url":"/v1/chat/completions","body":{"messages":[)"
      << R"({"role":"user","content":[{"type":"text","text":"hello"}]}],"max_completion_tokens":6,)"
      << sampling << "}}\n"
      << R"({"custom_id":"p","method":"POST","url":"/v1/completions","body":{"prompt":"# user\nhello\n",)"
      << R"("max_tokens":6,)" << sampling << "}}\n"
      << R"({"messages":[{"role":"user","content":"hello"}],"max_tokens":2,"n":2})"
      << "\n"
      << R"({"custom_id":"t","url":"/v1/chat/completions","body":{"messages":[{"role":"user",)"
      << R"("content":"a"}],"tools":[{"type":"function"}]}})"
      << "\n";
  test::exit_of(test::program() + " batch " + place.chatty + " --input " + input + " --output " +
                output + " > " + place.directory.path() + "/log 2>&1");
  std::istringstream lines(read(output));
  std::vector<json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(json::parse(line));
  INFO(read(place.directory.path() + "/log"));
  REQUIRE(rows.size() == 4);
  const json& chat = rows[0]["response"]["body"];
  const json& plain = rows[1]["response"]["body"];
  CHECK(rows[0]["custom_id"] == "c");
  CHECK(chat["object"] == "chat.completion");
  CHECK(std::string(chat["id"]).find("chatcmpl-") == 0);
  CHECK(chat["choices"][0]["message"]["role"] == "assistant");
  CHECK(chat["choices"][0]["message"]["content"] == plain["choices"][0]["text"]);
  CHECK(chat["prompt_token_ids"] == plain["choices"][0]["prompt_token_ids"]);
  CHECK(chat["choices"][0]["finish_reason"] == "length");
  CHECK(chat["usage"] == plain["usage"]);
  CHECK(plain["object"] == "text_completion");
  CHECK(rows[2]["response"]["body"]["choices"].size() == 2);
  CHECK(rows[3]["response"]["status_code"] == 400);
  CHECK(rows[3]["response"]["body"]["error"]["param"] == "tools");
}

TEST_CASE("inspect says which chat template a model has") {
  Place place;
  CHECK(json::parse(place.run("inspect " + place.chatty + " --json"))["chat_template"] ==
        "in chat_template.jinja");
  CHECK(place.run("inspect " + place.demo).find("none of its own; a chat is plain text") !=
        std::string::npos);
}

}  // namespace
}  // namespace spillway::chat_test
