// The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json.
#include "offload/convert/gguf_tokenizer.h"

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "offload/convert/gguf_header.h"
#include "tests/support/gguf_writer.h"

namespace spillway::gguf_tokenizer_test {
namespace {

using nlohmann::json;

Result<std::vector<std::pair<std::string, std::string>>> files_of(const GgufWriter& writer) {
  const auto source = memory_source("f.gguf", writer.file());
  const auto header = read_gguf_header(*source);
  INFO(header.status().message());
  REQUIRE(header.ok());
  return gguf_tokenizer_files(header->metadata, "f.gguf");
}

struct Files {
  json tokenizer;
  json config;
};

Files json_of(const GgufWriter& writer) {
  const auto files = files_of(writer);
  INFO(files.status().message());
  REQUIRE(files.ok());
  REQUIRE(files->size() == 2);
  CHECK(files.value()[0].first == "tokenizer.json");
  CHECK(files.value()[1].first == "tokenizer_config.json");
  return {json::parse(files.value()[0].second), json::parse(files.value()[1].second)};
}

std::string refused(const GgufWriter& writer) {
  const auto files = files_of(writer);
  REQUIRE_FALSE(files.ok());
  CHECK_THAT(std::string(files.status().message()), Catch::StartsWith("f.gguf: key "));
  return std::string(files.status().message());
}

GgufWriter byte_level(const char* pre) {
  GgufWriter writer;
  writer.add("tokenizer.ggml.model", std::string_view("gpt2"));
  writer.add("tokenizer.ggml.pre", std::string_view(pre));
  writer.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", "<s>", "<tool>"});
  writer.add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1, 3, 4});
  writer.add("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  writer.add("tokenizer.ggml.bos_token_id", int64_t{3});
  return writer;
}

GgufWriter sentence_pieces() {
  GgufWriter writer;
  writer.add("tokenizer.ggml.model", std::string_view("llama"));
  writer.add("tokenizer.ggml.tokens",
             std::vector<std::string>{"<unk>", "<s>", "</s>", "<0x0A>", "\xe2\x96\x81", "x",
                                      "\xe2\x96\x81x", "<|end|>"});
  writer.add("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, 0, -3, -2, -1, 0});
  writer.add("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 3, 6, 1, 1, 1, 4});
  writer.add("tokenizer.ggml.bos_token_id", int64_t{1});
  writer.add("tokenizer.ggml.eos_token_id", int64_t{2});
  writer.add("tokenizer.ggml.unknown_token_id", int64_t{0});
  return writer;
}

TEST_CASE("a file without a tokenizer has no files") {
  CHECK(files_of(GgufWriter())->empty());
}

TEST_CASE("a byte-level tokenizer") {
  GgufWriter writer = byte_level("smollm");
  writer.add("tokenizer.chat_template", std::string_view("{{ messages }}"));
  const Files files = json_of(writer);
  const json& model = files.tokenizer["model"];
  CHECK(model["type"] == "BPE");
  CHECK(model["vocab"] == json({{"a", 0}, {"b", 1}, {"ab", 2}, {"<s>", 3}, {"<tool>", 4}}));
  CHECK(model["merges"] == json::array({"a b"}));
  CHECK(model["ignore_merges"] == false);
  CHECK(model["byte_fallback"] == false);
  const json& steps = files.tokenizer["pre_tokenizer"]["pretokenizers"];
  REQUIRE(steps.size() == 2);
  CHECK(steps[0] == json({{"type", "Digits"}, {"individual_digits", true}}));
  CHECK(steps[1]["type"] == "ByteLevel");
  CHECK(steps[1]["use_regex"] == true);
  CHECK(steps[1]["add_prefix_space"] == false);
  CHECK(files.tokenizer["decoder"]["type"] == "ByteLevel");
  CHECK(files.tokenizer["normalizer"].is_null());
  CHECK(files.tokenizer["post_processor"].is_null());
  const json& added = files.tokenizer["added_tokens"];
  REQUIRE(added.size() == 2);
  CHECK(added[0]["content"] == "<s>");
  CHECK(added[0]["id"] == 3);
  CHECK(added[0]["special"] == true);
  CHECK(added[1]["content"] == "<tool>");
  CHECK(added[1]["special"] == false);
  CHECK(added[1]["normalized"] == false);
  CHECK(files.config["bos_token"] == "<s>");
  CHECK(files.config["add_bos_token"] == false);
  CHECK(files.config["chat_template"] == "{{ messages }}");
  CHECK_FALSE(files.config.contains("eos_token"));
}

TEST_CASE("each pre-tokenizer has its own pattern and settings") {
  const Files llama = json_of(byte_level("llama-bpe"));
  const json& split = llama.tokenizer["pre_tokenizer"]["pretokenizers"][0];
  CHECK(split["type"] == "Split");
  CHECK(split["behavior"] == "Isolated");
  CHECK_THAT(split["pattern"]["Regex"].get<std::string>(),
             Catch::StartsWith("(?i:'s|'t|") && Catch::Contains("\\p{N}{1,3}|") &&
                 Catch::EndsWith("|\\s+(?!\\S)|\\s+"));
  CHECK(llama.tokenizer["pre_tokenizer"]["pretokenizers"][1]["use_regex"] == false);
  CHECK(llama.tokenizer["model"]["ignore_merges"] == true);
  CHECK(llama.config["add_bos_token"] == true);
  const json& single = llama.tokenizer["post_processor"]["single"];
  REQUIRE(single.size() == 2);
  CHECK(single[0]["SpecialToken"]["id"] == "<s>");
  CHECK(single[1]["Sequence"]["id"] == "A");
  CHECK(llama.tokenizer["post_processor"]["special_tokens"]["<s>"]["ids"] == json::array({3}));

  const Files qwen = json_of(byte_level("qwen2"));
  CHECK(qwen.tokenizer["normalizer"] == json({{"type", "NFC"}}));
  CHECK_THAT(
      qwen.tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"].get<std::string>(),
      Catch::Contains("\\p{N}|") && !Catch::Contains("{1,3}"));
  CHECK(json_of(byte_level("gpt-2")).tokenizer["pre_tokenizer"]["type"] == "ByteLevel");
  CHECK(json_of(byte_level("default")).tokenizer["pre_tokenizer"]["use_regex"] == true);
  CHECK(json_of(byte_level("olmo")).tokenizer["normalizer"]["type"] == "NFC");
}

TEST_CASE("what the file says of bos comes before what is usual") {
  GgufWriter writer = byte_level("llama-bpe");
  writer.add("tokenizer.ggml.add_bos_token", false);
  CHECK(json_of(writer).tokenizer["post_processor"].is_null());
  CHECK(json_of(writer).config["add_bos_token"] == false);
  writer = byte_level("gpt-2");
  writer.add("tokenizer.ggml.add_bos_token", true);
  CHECK(json_of(writer).tokenizer["post_processor"]["single"].size() == 2);
}

TEST_CASE("a SentencePiece model as byte-fallback BPE") {
  const Files files = json_of(sentence_pieces());
  const json& model = files.tokenizer["model"];
  CHECK(model["byte_fallback"] == true);
  CHECK(model["fuse_unk"] == true);
  CHECK(model["unk_token"] == "<unk>");
  CHECK(model["merges"] == json::array({json::array({"\xe2\x96\x81", "x"})}));
  const json& normalizers = files.tokenizer["normalizer"]["normalizers"];
  REQUIRE(normalizers.size() == 2);
  CHECK(normalizers[0] == json({{"type", "Prepend"}, {"prepend", "\xe2\x96\x81"}}));
  CHECK(normalizers[1]["pattern"]["String"] == " ");
  CHECK(normalizers[1]["content"] == "\xe2\x96\x81");
  const json& decoders = files.tokenizer["decoder"]["decoders"];
  REQUIRE(decoders.size() == 4);
  CHECK(decoders[1] == json({{"type", "ByteFallback"}}));
  CHECK(decoders[2] == json({{"type", "Fuse"}}));
  CHECK(decoders[3]["start"] == 1);
  CHECK(files.tokenizer["pre_tokenizer"].is_null());
  CHECK(files.tokenizer["added_tokens"].size() == 4);  // Unknown, two control, one of the user.
  CHECK(files.tokenizer["added_tokens"][3]["rstrip"] == false);
  CHECK(files.config["add_bos_token"] == true);
  CHECK(files.config["eos_token"] == "</s>");

  GgufWriter writer = sentence_pieces();
  writer.add("tokenizer.ggml.add_space_prefix", false);
  CHECK(json_of(writer).tokenizer["normalizer"]["normalizers"].size() == 1);
  CHECK(json_of(writer).tokenizer["decoder"]["decoders"].size() == 3);
  writer.add("general.architecture", std::string_view("phi3"));
  CHECK(json_of(writer).tokenizer["added_tokens"][3]["rstrip"] == true);
  CHECK(json_of(writer).tokenizer["added_tokens"][1]["rstrip"] == false);
}

TEST_CASE("kinds that are not supported are left to the reader of tokenizer.json, by name") {
  const Files unknown = json_of(byte_level("some-pre"));
  CHECK(unknown.tokenizer["pre_tokenizer"]["type"] == "tokenizer.ggml.pre some-pre");
  GgufWriter writer;
  writer.add("tokenizer.ggml.model", std::string_view("bert"));
  writer.add("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
  CHECK(json_of(writer).tokenizer["model"]["type"] == "tokenizer.ggml.model bert");
  writer.remove("tokenizer.ggml.model");
  writer.add("tokenizer.ggml.model", std::string_view("b\xff"));
  CHECK(json_of(writer).tokenizer["model"]["type"] == "tokenizer.ggml.model 'b\\xff'");
}

TEST_CASE("a file may say that it has no tokenizer") {
  for (const std::string_view kind : {"none", "no_vocab"}) {
    GgufWriter writer;
    writer.add("tokenizer.ggml.model", kind);
    const auto files = files_of(writer);
    REQUIRE(files.ok());
    CHECK(files->empty());
  }
}

TEST_CASE("entries that contradict each other are refused") {
  const auto with = [](GgufWriter writer, const std::string& key, const auto& value) {
    writer.remove("tokenizer.ggml." + key);
    writer.add("tokenizer.ggml." + key, value);
    return refused(writer);
  };
  using Strings = std::vector<std::string>;
  CHECK_THAT(with(byte_level("gpt-2"), "tokens", Strings{"a", "b", "a"}),
             Catch::Contains("token 2 'a' is token 0 again"));
  CHECK_THAT(with(byte_level("gpt-2"), "tokens", Strings{"a", "\xff"}),
             Catch::Contains("token 1 '\\xff' is not valid UTF-8"));
  CHECK_THAT(with(byte_level("gpt-2"), "tokens", Strings{"a", "\xed\xa0\x80"}),
             Catch::Contains("UTF-8"));
  CHECK_THAT(with(byte_level("gpt-2"), "tokens", Strings{std::string(5000, 'a')}),
             Catch::Contains("5000 bytes"));
  CHECK_THAT(with(byte_level("gpt-2"), "tokens", Strings{}), Catch::Contains("0 tokens"));
  CHECK_THAT(with(byte_level("gpt-2"), "token_type", std::vector<int32_t>{1}),
             Catch::Contains("1 elements for 5 tokens"));
  CHECK_THAT(with(byte_level("gpt-2"), "merges", Strings{"a b", "\x80"}),
             Catch::Contains("merge 1"));
  CHECK_THAT(with(byte_level("gpt-2"), "merges", std::string_view("a b")),
             Catch::Contains("it is a string"));
  GgufWriter none = byte_level("gpt-2");
  none.remove("tokenizer.ggml.merges");
  CHECK_THAT(refused(none), Catch::Contains("merges' is missing"));
  CHECK_THAT(with(sentence_pieces(), "scores", std::vector<float>{1}),
             Catch::Contains("1 elements for 8 tokens"));
  CHECK_THAT(with(sentence_pieces(), "scores",
                  std::vector<float>(8, std::numeric_limits<float>::quiet_NaN())),
             Catch::Contains("token 0"));
  GgufWriter writer = byte_level("gpt-2");
  writer.add("tokenizer.chat_template", std::string_view("\xff"));
  CHECK_THAT(refused(writer), Catch::Contains("chat_template"));
}

}  // namespace
}  // namespace spillway::gguf_tokenizer_test
