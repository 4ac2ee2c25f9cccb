// The ids of the `tokenizers` library, line by line, for the tokenizers that are at hand.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/server/tokenizer/tokenizer_support.h"
#include "tests/support/skip.h"

namespace spillway {
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
    REQUIRE(tokenizer.encode(text, options) == expected);
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

TEST_CASE("OPT's documented encodings") {
  const auto tokenizer = load_opt();
  if (!tokenizer) {
    return test::skip("no OPT vocabulary beside the sources or at SPILLWAY_SHARED");
  }
  CHECK(tokenizer->vocabulary() == 50265);
  CHECK(tokenizer->encode("Hey, are you conscious? Can you talk to me?", {}) ==
        std::vector<int32_t>{2, 13368, 6, 32, 47, 13316, 116, 2615, 47, 1067, 7, 162, 116});
  CHECK(tokenizer->encode("Today is a beautiful day and I want to", {}) ==
        std::vector<int32_t>{2, 5625, 16, 10, 2721, 183, 8, 38, 236, 7});
}

}  // namespace
}  // namespace spillway
