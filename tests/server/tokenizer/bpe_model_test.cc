// The merge loop against its definition, and its cost in operations.
#include "server/tokenizer/bpe_model.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "tests/server/tokenizer/references.h"
#include "tests/server/tokenizer/tokenizer_support.h"

namespace spillway {
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
  const auto opt = load_opt();
  const Tokenizer tokenizer = opt ? *opt : load_small({"a a", "aa aa", "t h", "th e"});
  for (const std::string unit : {"a", "^", " ", "\xF0\x9F\x98\x80", "\xCC\x81", "the", "\n"}) {
    std::string text;
    while (text.size() < size_t{1} << 20) text += unit;
    REQUIRE(tokenizer.decode(tokenizer.encode(text, {}), true) == text);
  }
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
}  // namespace spillway
