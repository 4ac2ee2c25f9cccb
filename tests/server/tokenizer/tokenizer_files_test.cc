// What the tokenizer's files may not say, and how the refusal names file and entry.
#include "server/tokenizer/tokenizer_files.h"

#include <catch2/catch.hpp>
#include <string>

#include "server/tokenizer/utf8.h"
#include "tests/server/tokenizer/small_tokenizer.h"

namespace spillway::tokenizer_files_test {
namespace {

using nlohmann::json;

std::string error(const Files& files) {
  const Status status = read_tokenizer_files(files).status();
  CHECK(status.code() == Code::kInvalidArgument);
  return std::string(status.message());
}

std::string error_of_vocabulary(const std::string& vocabulary, const std::string& merges = "") {
  return error({{"vocab.json", vocabulary}, {"merges.txt", merges}});
}

// The error of a good tokenizer.json with one member changed.
std::string error_with(const char* pointer, const json& value) {
  json file = small_tokenizer_json({"h e", "l l"});
  file[json::json_pointer(pointer)] = value;
  return error({{"tokenizer.json", file.dump()}});
}

TEST_CASE("no tokenizer is kNotFound, half of one as well") {
  CHECK(read_tokenizer_files({}).status().code() == Code::kNotFound);
  const Files half = {{"vocab.json", "{}"}};
  const Status status = read_tokenizer_files(half).status();
  CHECK(status.code() == Code::kNotFound);
  CHECK_THAT(std::string(status.message()), Catch::Contains("merges.txt"));
}

TEST_CASE("ids must be 0, 1, 2, ... each once") {
  CHECK_THAT(error_of_vocabulary(R"({"a": 0, "b": 0})"),
             Catch::Equals("vocab.json: id 0 has two pieces, \"a\" and \"b\""));
  CHECK_THAT(error_of_vocabulary(R"({"a": 0, "b": 2})"),
             Catch::Contains("vocab.json: id 1 has no piece, the highest id is 2"));
  CHECK_THAT(error_of_vocabulary(R"({"a": 0, "a": 1})"),
             Catch::Contains("the key 'a' occurs twice"));
  CHECK_THAT(error_of_vocabulary(R"({"a": -1})"), Catch::Contains("id -1 of piece \"a\""));
  CHECK_THAT(error_of_vocabulary(R"({"a": 1048576})"), Catch::Contains("is not in 0..1048575"));
  CHECK_THAT(error_of_vocabulary(R"({"a": 18446744073709551615})"),
             Catch::Contains("the id of piece \"a\" is 18446744073709551615"));
  CHECK_THAT(error_of_vocabulary(R"({"a": 0.5})"), Catch::Contains("the id of piece \"a\" is 0.5"));
  CHECK_THAT(error_of_vocabulary(R"({"": 0})"), Catch::Contains("id 0 has an empty piece"));
  CHECK_THAT(error_of_vocabulary("{}"), Catch::Contains("the vocabulary is empty"));
  CHECK_THAT(error_of_vocabulary("{\"" + std::string(kPieceBytesMax + 1, 'x') + "\": 0}"),
             Catch::Contains("has 4097 bytes, the limit is 4096"));
}

TEST_CASE("files must be what they are called") {
  CHECK_THAT(error_of_vocabulary("{\"a\": 0"), Catch::StartsWith("vocab.json: "));
  CHECK_THAT(error_of_vocabulary("[]"), Catch::Contains("vocab.json: is not a JSON object"));
  CHECK_THAT(error_of_vocabulary("{\"\xC3\": 0}"), Catch::Contains("UTF-8"));
  // An error message quotes neither broken bytes nor a whole file.
  const std::string broken = error_of_vocabulary("{\"" + std::string(100000, '\xA4'));
  CHECK(is_valid_utf8(broken));
  CHECK(broken.size() < 1000);
  CHECK_THAT(error({{"tokenizer.json", std::string(100000, '[')}}),
             Catch::StartsWith("tokenizer.json: "));
  CHECK_THAT(error({{"tokenizer.json", std::string(kTokenizerFileBytesMax + 1, ' ')}}),
             Catch::Contains("67108865 bytes, the limit is 67108864"));
  Files files = small_files({});
  files.emplace_back("tokenizer_config.json", "{");
  CHECK_THAT(error(files), Catch::StartsWith("tokenizer_config.json: "));
}

TEST_CASE("merges must be of known pieces, each once") {
  const std::string vocabulary = R"({"a": 0, "b": 1, "ab": 2})";
  CHECK_THAT(error_of_vocabulary(vocabulary, "#version: 0.2\na b\na c\n"),
             Catch::Equals("merges.txt: line 3: merge 1 of \"a\" and \"c\": the right piece is not "
                           "in the vocabulary"));
  CHECK_THAT(error_of_vocabulary(vocabulary, "c a"), Catch::Contains("the left piece"));
  CHECK_THAT(error_of_vocabulary(vocabulary, "b a"), Catch::Contains("the result"));
  CHECK_THAT(error_of_vocabulary(vocabulary, "a b\r\na b"), Catch::Contains("is there twice"));
  for (const char* line : {"a", "a  b", "a b ", " a b", "a b c"}) {
    CHECK_THAT(error_of_vocabulary(vocabulary, line),
               Catch::Contains("line 1") && Catch::Contains("one space"));
  }
  CHECK_THAT(error_with("/model/merges/1", "h x"), Catch::Contains("tokenizer.json: model.merges"));
  CHECK_THAT(error_with("/model/merges/1", json::array({"h"})),
             Catch::Contains("is not a pair of pieces"));
  CHECK_THAT(error_with("/model/merges", 5), Catch::Contains("model.merges is not a list"));
}

TEST_CASE("a merges file may begin with a comment and end without a line break") {
  const std::string vocabulary = R"({"#": 0, "b": 1, "#b": 2})";
  const Files with = {{"vocab.json", vocabulary}, {"merges.txt", "#version: 0.2\r\n# b\r\n"}};
  const Files without = {{"vocab.json", vocabulary}, {"merges.txt", "# b"}};
  for (const Files& files : {with, without}) {
    const auto description = read_tokenizer_files(files);
    REQUIRE(description.status().message() == "");
    REQUIRE(description.value().merges.size() == 1);
    CHECK(description.value().merges[0].merged == 2);
  }
}

TEST_CASE("models and steps that are not known are refused by name") {
  CHECK_THAT(error_with("/model/type", "Unigram"), Catch::Contains("only BPE is supported"));
  CHECK_THAT(error_with("/model/dropout", 0.1), Catch::Contains("model.dropout"));
  CHECK_THAT(error_with("/model/byte_fallback", 1), Catch::Contains("model.byte_fallback"));
  CHECK_THAT(error_with("/model/end_of_word_suffix", "</w>"), Catch::Contains("</w>"));
  CHECK_THAT(error_with("/model/unk_token", 3), Catch::Contains("model.unk_token"));
  CHECK_THAT(error_with("/normalizer", {{"type", "StripAccents"}}),
             Catch::Contains("tokenizer.json: normalizer: StripAccents: this kind"));
  CHECK_THAT(error_with("/normalizer", {{"type", "NFC"}, {"x", 1}}),
             Catch::Contains("unknown field 'x'"));
  CHECK_THAT(error_with("/normalizer", {{"type", "Replace"}, {"pattern", "a"}, {"content", ""}}),
             Catch::Contains("pattern must be an object"));
  CHECK_THAT(error_with("/decoder", nullptr), Catch::Contains("decoder: null"));
  CHECK_THAT(error_with("/decoder", {{"type", "WordPiece"}}), Catch::Contains("WordPiece"));
  const json strip = {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1}};
  CHECK_THAT(error_with("/decoder", strip), Catch::Contains("stop is not 0"));
  CHECK_THAT(error_with("/pre_tokenizer", {{"type", "UnicodeScripts"}}),
             Catch::Contains("pre_tokenizer: UnicodeScripts"));
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Sideways"}};
  CHECK_THAT(error_with("/pre_tokenizer", split), Catch::Contains("Sideways"));
  CHECK_THAT(error_with("/pre_tokenizer/use_regex", 1), Catch::Contains("true or false"));
  json deep = {{"type", "Sequence"}, {"pretokenizers", json::array()}};
  for (size_t i = 0; i <= kStepsMax; ++i) deep["pretokenizers"].push_back({{"type", "Whitespace"}});
  CHECK_THAT(error_with("/pre_tokenizer", deep), Catch::Contains("at most 64"));
  json wide = {{"type", "Sequence"}, {"pretokenizers", {deep, deep}}};
  wide["pretokenizers"][0]["pretokenizers"].erase(0);
  wide["pretokenizers"][1]["pretokenizers"].erase(0);
  CHECK_THAT(error_with("/pre_tokenizer", wide), Catch::Contains("more than 64 steps"));
}

TEST_CASE("templates of post-processors") {
  CHECK_THAT(error_with("/post_processor", {{"type", "RobertaProcessing"}}),
             Catch::Contains("post_processor"));
  const json end = {{"SpecialToken", {{"id", "</s>"}}}};
  const json text = {{"Sequence", {{"id", "A"}}}};
  const auto made = [&](const json& single) {
    return json{{"type", "TemplateProcessing"}, {"single", single}};
  };
  CHECK_THAT(error_with("/post_processor", made({text, text})), Catch::Contains("in it once"));
  CHECK_THAT(error_with("/post_processor", made(json::array({end}))),
             Catch::Contains("in it once"));
  const json unknown = {{"SpecialToken", {{"id", "<x>"}}}};
  CHECK_THAT(error_with("/post_processor", made({unknown, text})),
             Catch::Contains("unknown token \"<x>\""));
  json mapped = made({end, text});
  mapped["special_tokens"] = {{"</s>", {{"ids", {4, 9999}}}}};
  CHECK_THAT(error_with("/post_processor", mapped), Catch::Contains("unknown token"));
  json file = small_tokenizer_json({});
  mapped["special_tokens"] = {{"</s>", {{"ids", {4, 5}}}}};
  file["post_processor"] = {{"type", "Sequence"},
                            {"processors", {{{"type", "ByteLevel"}}, mapped, made({text, end})}}};
  const Files files = {{"tokenizer.json", file.dump()}};
  const auto description = read_tokenizer_files(files);
  REQUIRE(description.status().message() == "");
  CHECK(description.value().around->before == std::vector<int32_t>{4, 5});
  CHECK(description.value().around->behind == std::vector<int32_t>{0});
}

TEST_CASE("steps are read with their options, sequences taken apart") {
  json file = small_tokenizer_json({});
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers",
                         {{{"type", "NFKC"}},
                          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "_"}},
                          {{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}}}}};
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", "a+"}}},
         {"behavior", "Removed"},
         {"invert", true}},
        {{"type", "Metaspace"},
         {"replacement", "_"},
         {"add_prefix_space", false},
         {"str_rep", "_"}},
        {{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}}}}};
  file["model"]["ignore_merges"] = true;
  const Files files = {{"tokenizer.json", file.dump()}};
  const auto read = read_tokenizer_files(files);
  REQUIRE(read.status().message() == "");
  const TokenizerDescription& description = read.value();
  REQUIRE(description.normalizer.size() == 3);
  CHECK(description.normalizer[1].pattern.literal);
  CHECK_FALSE(description.normalizer[2].left);
  REQUIRE(description.pre_tokenizer.size() == 4);
  CHECK(description.pre_tokenizer[0].invert);
  CHECK(description.pre_tokenizer[0].behavior == SplitBehavior::kRemoved);
  CHECK(description.pre_tokenizer[1].prepend == PrependScheme::kNever);
  CHECK(description.pre_tokenizer[2].individual_digits);
  CHECK(description.pre_tokenizer[3].add_prefix_space);
  CHECK(description.bpe.ignore_merges);
  CHECK(description.bpe.bytes);
}

TEST_CASE("added and special tokens must fit the vocabulary") {
  CHECK_THAT(error_with("/added_tokens/0/id", 7), Catch::Contains("has two ids, 0 and 7"));
  CHECK_THAT(error_with("/added_tokens/0/id", "0"), Catch::Contains("has no integer id"));
  CHECK_THAT(error_with("/added_tokens/0/content", ""), Catch::Contains("has no content"));
  CHECK_THAT(error_with("/added_tokens/0/special", 1), Catch::Contains("special is not true"));
  CHECK_THAT(error_with("/added_tokens/0/single_word", 1), Catch::Contains("single_word"));
  CHECK_THAT(error_with("/added_tokens", {{"a", 1}}),
             Catch::Contains("added_tokens is not a list"));
  Files files = small_files({});
  files.emplace_back("tokenizer_config.json", R"({"eos_token": "<nowhere>"})");
  CHECK_THAT(error(files), Catch::Contains("eos_token is not in the vocabulary"));
  files.back().second = R"({"eos_token": 3})";
  CHECK_THAT(error(files), Catch::Contains("tokenizer_config.json: eos_token is neither"));
  files.back().second = R"({"added_tokens_decoder": {"x": {"content": "<x>"}}})";
  CHECK_THAT(error(files), Catch::Contains("added_tokens_decoder: a key is not an id"));
}

TEST_CASE("tokenizer_config.json may add tokens beside vocab.json") {
  Files files = small_files({});
  files.emplace_back(
      "tokenizer_config.json",
      R"({"added_tokens_decoder": {"257": {"content": "<x>", "special": true, "lstrip": true}}})");
  const auto description = read_tokenizer_files(files);
  REQUIRE(description.status().message() == "");
  CHECK(description.value().pieces.size() == 258);
  REQUIRE(description.value().added.size() == 1);
  CHECK(description.value().added[0].id == 257);
  CHECK(description.value().added[0].special);
  CHECK(description.value().added[0].strip_left);
}

}  // namespace
}  // namespace spillway::tokenizer_files_test
