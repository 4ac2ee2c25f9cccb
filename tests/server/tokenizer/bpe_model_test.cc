// The merge loop against its definition, and its cost in operations.
#include "server/tokenizer/bpe_model.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <random>
#include <string>

#include "tests/server/tokenizer/references.h"
#include "tests/server/tokenizer/tokenizer_support.h"

namespace spillway::bpe_model_test {
namespace {

struct RandomModel {
  std::vector<std::string> pieces;
  std::vector<Merge> merges;
};

// Merges over few letters in random order, so that later ranks make pairs of earlier ones.
RandomModel random_model(std::mt19937& random, size_t merges) {
  RandomModel model;
  for (unsigned byte = 0; byte < 256; ++byte) {
    model.pieces.push_back(symbol_of_byte(static_cast<uint8_t>(byte)));
  }
  std::vector<int32_t> usable = {'a', 'b', 'c'};
  for (size_t i = 0; i < merges; ++i) {
    const int32_t left = usable[random() % usable.size()];
    const int32_t right = usable[random() % usable.size()];
    bool known = false;
    for (const Merge& merge : model.merges) {
      known = known || (merge.left == left && merge.right == right);
    }
    const std::string text =
        model.pieces[static_cast<size_t>(left)] + model.pieces[static_cast<size_t>(right)];
    if (known || text.size() > 12) continue;
    // Different pairs may make the same piece.
    auto same = std::find(model.pieces.begin(), model.pieces.end(), text);
    const auto merged = static_cast<int32_t>(same - model.pieces.begin());
    if (same == model.pieces.end()) {
      model.pieces.push_back(text);
      usable.push_back(merged);
    }
    model.merges.push_back({left, right, merged});
  }
  std::shuffle(model.merges.begin(), model.merges.end(), random);
  return model;
}

TEST_CASE("merging is that of the definition, for merges in any order") {
  const unsigned seed = 77;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    const RandomModel model = random_model(random, random() % 60);
    const auto bpe = BpeModel::create(model.pieces, model.merges);
    BpeScratch scratch;
    for (int text_round = 0; text_round < 10; ++text_round) {
      std::string text(random() % 80, 'a');
      const unsigned letters = 1 + random() % 4;
      for (char& letter : text) letter = static_cast<char>('a' + random() % letters);
      INFO("round " << round << ": " << text);
      std::vector<int32_t> expected(text.begin(), text.end());
      expected = merge_naively(expected, model.merges);
      std::vector<int32_t> found;
      bpe.value().encode(text, &scratch, &found);
      REQUIRE(found == expected);
    }
  }
}

TEST_CASE("candidates grow no faster than the text") {
  const auto files =
      read_tokenizer_files(small_files({"a a", "aa aa", "aaaa aaaa", "t h", "th e", "the the"}))
          .value();
  const auto bpe = BpeModel::create(files.pieces, files.merges);
  for (const std::string unit : {"a", "the", "ab", "x", "\xF0\x9F\x98\x80"}) {
    std::string text;
    while (text.size() < 100000) text += unit;
    BpeScratch scratch;
    std::vector<int32_t> ids;
    bpe.value().encode(text, &scratch, &ids);
    INFO(unit << ": " << scratch.candidates() << " candidates for " << text.size() << " bytes");
    CHECK(scratch.candidates() <= 3 * text.size());  // Each byte once, two for each merge.
    CHECK(ids.size() >= text.size() / 8);
  }
}

TEST_CASE("a megabyte of anything comes back") {
  auto opt = load_opt();
  const Tokenizer tokenizer = opt ? std::move(*opt) : load_small({"a a", "aa aa", "t h", "th e"});
  for (const std::string unit : {"a", "^", " ", "\xF0\x9F\x98\x80", "\xCC\x81", "the", "\n"}) {
    std::string text;
    while (text.size() < size_t{1} << 20) text += unit;
    REQUIRE(tokenizer.decode(tokenizer.encode(text, {}).value(), true) == text);
  }
}

std::vector<int32_t> ids_of(const BpeModel& model, const std::string& text) {
  BpeScratch scratch;
  std::vector<int32_t> ids;
  model.encode(text, &scratch, &ids);
  return ids;
}

TEST_CASE("characters that the vocabulary lacks are their bytes' tokens or an unknown token") {
  using Ids = std::vector<int32_t>;
  std::vector<std::string> pieces = {"<unk>", "a", "b", "ab", "\xC3\xA9"};
  const std::vector<Merge> merges = {{1, 2, 3}};
  const Status vanishes = BpeModel::create(pieces, merges, {.bytes = false}).status();
  CHECK_THAT(std::string(vanishes.message()), Catch::Contains("would vanish"));
  const auto unknown = BpeModel::create(pieces, merges, {.bytes = false, .unknown = 0}).value();
  CHECK(ids_of(unknown, "ab\xC3\xA9zzb") == Ids{3, 4, 0, 0, 2});
  const auto fused =
      BpeModel::create(pieces, merges, {.bytes = false, .unknown = 0, .fuse_unk = true}).value();
  CHECK(ids_of(fused, "zzb\xE6\xBC\xA2") == Ids{0, 2, 0});
  for (unsigned byte = 0; byte < 256; ++byte) {
    char text[7];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    pieces.push_back(text);
  }
  BpeOptions options = {.bytes = false, .byte_fallback = true};
  const auto bytes = BpeModel::create(pieces, merges, options).value();
  CHECK(ids_of(bytes,
               "a\xE6\xBC\xA2"
               "b\n") == Ids{1, 5 + 0xE6, 5 + 0xBC, 5 + 0xA2, 2, 5 + '\n'});
  // A byte token that is an added token is not the model's.
  options.unknown = 0;
  const auto outside = BpeModel::create(pieces, merges, options, {5 + 0xE6}).value();
  CHECK(ids_of(outside, "\xE6\xBC\xA2") == Ids{0});
  CHECK_FALSE(BpeModel::create(pieces, merges, {.bytes = false, .byte_fallback = true}, {5}).ok());
}

TEST_CASE("with ignore_merges a piece of the vocabulary is its token") {
  std::vector<std::string> pieces;
  for (unsigned byte = 0; byte < 256; ++byte) {
    pieces.push_back(symbol_of_byte(static_cast<uint8_t>(byte)));
  }
  pieces.push_back(
      "\xC4\xA0"
      "abc");  // " abc", which no merges make
  const auto model = BpeModel::create(pieces, {}, {.ignore_merges = true}).value();
  CHECK(ids_of(model, " abc") == std::vector<int32_t>{256});
  CHECK(ids_of(model, "abc") == std::vector<int32_t>{'a', 'b', 'c'});
}

TEST_CASE("rare bytes may be missing and vanish, or are unknown") {
  std::vector<std::string> pieces;
  for (unsigned byte = 0; byte < 256; ++byte) {
    pieces.push_back(byte == 4 ? "spare" : symbol_of_byte(static_cast<uint8_t>(byte)));
  }
  CHECK(ids_of(BpeModel::create(pieces, {}).value(), "a\x04z") == std::vector<int32_t>{'a', 'z'});
  const auto unknown = BpeModel::create(pieces, {}, {.unknown = 7}).value();
  CHECK(ids_of(unknown, "a\x04z") == std::vector<int32_t>{'a', 7, 'z'});
  CHECK(ids_of(BpeModel::create(pieces, {}).value(), "\x04").empty());
}

TEST_CASE("a vocabulary without one of UTF-8's bytes is refused") {
  std::vector<std::string> pieces;
  for (unsigned byte = 0; byte < 256; ++byte) {
    // Bytes that UTF-8 never has may be missing.
    const bool left_out = byte == 0xC0 || byte == 0xFF;
    pieces.push_back(left_out ? "spare" + std::to_string(byte)
                              : symbol_of_byte(static_cast<uint8_t>(byte)));
  }
  CHECK(BpeModel::create(pieces, {}).ok());
  pieces[' '] = "spare";
  CHECK_THAT(std::string(BpeModel::create(pieces, {}).status().message()),
             Catch::Contains("no piece for byte 32"));
}

}  // namespace
}  // namespace spillway::bpe_model_test
