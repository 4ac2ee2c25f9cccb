// Merges from scores against transformers' (scripts/oracle/make_gguf_golden.py).
#include "offload/convert/gguf_merges.h"

#include <catch2/catch.hpp>

#include "tests/support/json_file.h"
#include "tests/support/places.h"

namespace spillway::gguf_merges_test {
namespace {

TEST_CASE("merges and their order are those of the reference") {
  const nlohmann::json golden =
      test::read_json(test::source_directory() + "/tests/golden/gguf/merges.json");
  const auto pieces = golden["pieces"].get<std::vector<std::string>>();
  const auto scores = golden["scores"].get<std::vector<double>>();
  const auto merges = merges_of_scores(pieces, scores);
  REQUIRE(merges.size() == golden["merges"].size());
  REQUIRE(merges.size() > 100);
  size_t wrong = 0;
  for (size_t i = 0; i < merges.size(); ++i) {
    wrong += golden["merges"][i] != nlohmann::json({merges[i].first, merges[i].second});
  }
  CHECK(wrong == 0);
}

TEST_CASE("pieces are cut between characters, and very long ones not at all") {
  const std::string e = "\xc3\xa9";
  CHECK(merges_of_scores({e + e, e, "\xc3", "a"}, {3, 2, 1, 0}) ==
        std::vector<std::pair<std::string_view, std::string_view>>{{e, e}});
  const std::string half(kMergedPieceBytesMax / 2, 'x');
  CHECK(merges_of_scores({half, half + half, half + half + "y", "y"}, {4, 3, 2, 1}).size() == 1);
  CHECK(merges_of_scores({}, {}).empty());
}

}  // namespace
}  // namespace spillway::gguf_merges_test
