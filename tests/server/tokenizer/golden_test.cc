// The ids of the `tokenizers` library, line by line, for the tokenizers that are at hand.
#include <catch2/catch.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/server/tokenizer/tokenizer_support.h"
#include "tests/support/skip.h"

namespace spillway::golden_test {
namespace {

// Returns the number of lines compared; a line is {"t": text, "i": ids without bos}.
int compare_with_golden(const Tokenizer& tokenizer, const std::string& golden) {
  EncodeOptions options;
  options.add_bos = false;
  std::istringstream lines(golden);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    INFO("line " << count + 1 << ": " << line.substr(0, 200));
    const auto entry = nlohmann::json::parse(line);
    const auto text = entry["t"].get<std::string>();
    const auto expected = entry["i"].get<std::vector<int32_t>>();
    REQUIRE(tokenizer.encode(text, options).value() == expected);
    REQUIRE(tokenizer.decode(expected, false) == text);
  }
  return count;
}

TEST_CASE("OPT's ids are those of the tokenizers library") {
  const auto tokenizer = load_opt();
  const auto golden = read_file(test::source_directory() + "/tests/golden/tokenizer_opt.jsonl");
  if (!tokenizer || !golden) {
    return test::skip(tokenizer ? "no tests/golden/tokenizer_opt.jsonl"
                                : "no OPT vocabulary beside the sources or at SPILLWAY_SHARED");
  }
  CHECK(compare_with_golden(*tokenizer, *golden) >= 5000);
}

TEST_CASE("the demo model's ids are those of the tokenizers library") {
  const std::string folder = test::source_directory() + "/configs/demo/";
  const auto golden = read_file(test::source_directory() + "/tests/golden/tokenizer_demo.jsonl");
  Files files;
  for (const char* name : kTokenizerFileNames) {
    if (auto text = read_file(folder + name)) files.emplace_back(name, std::move(*text));
  }
  if (files.empty() || !golden) {
    return test::skip(golden ? "no tokenizer in configs/demo"
                             : "no tests/golden/tokenizer_demo.jsonl");
  }
  const auto tokenizer = Tokenizer::load(files, TokenizerDefaults());
  REQUIRE(tokenizer.status().message() == "");
  CHECK(compare_with_golden(tokenizer.value(), *golden) >= 500);
}

// 64-bit FNV-1a of ids as 32-bit little-endian numbers, in hexadecimal.
std::string hash_of(const std::vector<int32_t>& ids) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const int32_t id : ids) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3u;
    }
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

TEST_CASE("ids of every kind of tokenizer are those of the tokenizers library") {
  const std::string folder = test::source_directory() + "/tests/golden/tokenizers/";
  const auto names = nlohmann::json::parse(read_file(folder + "names.json").value());
  const std::string golden = read_file(folder + "lines.jsonl").value();
  for (size_t i = 0; i < names.size(); ++i) {
    const auto name = names[i].get<std::string>();
    const Files files = {{"tokenizer.json", read_file(folder + name + ".json").value()}};
    const auto tokenizer = Tokenizer::load(files, TokenizerDefaults());
    INFO(name);
    REQUIRE(tokenizer.status().message() == "");
    std::istringstream lines(golden);
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      INFO("line " << count + 1 << ": " << line.substr(0, 200));
      const auto entry = nlohmann::json::parse(line);
      const EncodeOptions all = {.add_bos = true, .parse_special = true};
      const auto ids = tokenizer.value().encode(entry["t"].get<std::string>(), all);
      REQUIRE(hash_of(ids.value()) == entry["h"][i].get<std::string>());
    }
    CHECK(count >= 500);
  }
}

TEST_CASE("OPT's documented encodings") {
  const auto tokenizer = load_opt();
  if (!tokenizer) {
    return test::skip("no OPT vocabulary beside the sources or at SPILLWAY_SHARED");
  }
  CHECK(tokenizer->vocabulary() == 50265);
  CHECK(tokenizer->encode("Hey, are you conscious? Can you talk to me?", {}).value() ==
        std::vector<int32_t>{2, 13368, 6, 32, 47, 13316, 116, 2615, 47, 1067, 7, 162, 116});
  CHECK(tokenizer->encode("Today is a beautiful day and I want to", {}).value() ==
        std::vector<int32_t>{2, 5625, 16, 10, 2721, 183, 8, 38, 236, 7});
}

}  // namespace
}  // namespace spillway::golden_test
