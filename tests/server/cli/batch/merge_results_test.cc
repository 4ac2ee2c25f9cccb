// One output of a batch's answers and errors.
#include "server/cli/batch/merge_results.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/temp_directory.h"

namespace spillway::merge_results_test {
namespace {

std::string line(int number, const std::string& more = "") {
  return R"({"id":"batch_req_0123abc_)" + std::to_string(number) + R"(","custom_id":"x"})" + more +
         "\n";
}

struct Files {
  Result<MergedResults> merge(const std::string& answers, const std::string& errors) {
    std::ofstream(folder / "a", std::ios::binary) << answers;
    std::ofstream(folder / "e", std::ios::binary) << errors;
    return merge_results(answers.empty() ? "" : folder / "a", errors.empty() ? "" : folder / "e",
                         folder / "tmp", folder / "out");
  }
  std::string out() const {
    std::ifstream in(folder / "out", std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  TempDirectory folder;
};

TEST_CASE("answers and errors come in the order of the input") {
  Files files;
  const MergedResults merged =
      files.merge(line(1) + line(3) + line(20), line(2) + line(30) + line(4) + line(19)).value();
  CHECK(merged.answers == 3);
  CHECK(merged.errors == 4);
  CHECK(files.out() == line(1) + line(2) + line(3) + line(4) + line(19) + line(20) + line(30));
  CHECK_FALSE(std::filesystem::exists(files.folder / "tmp"));
}

TEST_CASE("one of the two files may be missing, and the last line may lack its end") {
  Files files;
  CHECK(files.merge(line(2) + line(1), "")->answers == 2);
  CHECK(files.out() == line(1) + line(2));
  CHECK(files.merge("", line(5))->errors == 1);
  CHECK(files.out() == line(5));
  std::string open = line(1) + line(2);
  open.pop_back();
  CHECK(files.merge(open, line(3))->answers == 2);
  CHECK(files.out() == line(1) + line(2) + line(3));
  CHECK(files.merge("", "")->answers == 0);
  CHECK(files.out().empty());
}

TEST_CASE("lines of other servers stay in the order in which they are") {
  Files files;
  const std::string b = "{\"id\":\"resp_b\"}\n", a = "{\"id\":\"resp_a\"}\n";
  REQUIRE(files.merge(b + line(1) + a, "x\n").ok());
  CHECK(files.out() == line(1) + b + a + "x\n");
}

TEST_CASE("long lines are merged whole") {
  Files files;
  const std::string x(3'000'000, 'x'), y(1'500'000, 'y');
  REQUIRE(files.merge(line(2, x) + line(4), line(1, y) + line(3)).ok());
  CHECK(files.out() == line(1, y) + line(2, x) + line(3) + line(4));
}

TEST_CASE("where the output cannot be written the old one stays") {
  Files files;
  std::ofstream(files.folder / "out") << "old";
  std::ofstream(files.folder / "a") << line(1);
  CHECK_FALSE(
      merge_results(files.folder / "a", "", files.folder / "none/tmp", files.folder / "out").ok());
  CHECK(files.out() == "old");
  std::filesystem::create_directories(files.folder / "full/sub");
  CHECK_FALSE(
      merge_results(files.folder / "a", "", files.folder / "tmp", files.folder / "full").ok());
  CHECK_FALSE(std::filesystem::exists(files.folder / "tmp"));
  CHECK_FALSE(
      merge_results(files.folder / "gone", "", files.folder / "tmp", files.folder / "out").ok());
}

TEST_CASE("line numbers are those at the end of an id") {
  CHECK(line_number_of(line(17)) == 17);
  for (const char* text :
       {"", "{}", "{\"id\":\"batch_req_\"}", "{\"id\":\"batch_req_abc\"}",
        "{\"id\":\"batch_req_a_0\"}", "{\"id\":\"batch_req_a_-1\"}", "{\"id\":\"batch_req_a_1x\"}",
        "{\"id\":\"batch_req_a_1", "{\"id\":\"batch_req_a_99999999999999999999\"}"}) {
    INFO(text);
    CHECK(line_number_of(text) == 0);
  }
}

}  // namespace
}  // namespace spillway::merge_results_test
