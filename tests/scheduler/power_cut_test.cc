// The batch journal on a disk that loses power: what was committed is there, whatever of the rest.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <vector>

#include "scheduler/journal.h"
#include "tests/support/power_cut.h"
#include "tests/support/seed.h"
#include "tests/support/temp_directory.h"

namespace spillway::power_cut_test {
namespace {

namespace fs = std::filesystem;
using test::PowerCutDisk;

const JournalHead kHead = {{"input", "abc"}, {"model", "tiny"}, {"seed", "1"}};
constexpr int kCuts = 300;

// Rows of all lengths: some within a page, some of several.
std::string line_of(int64_t row) {
  return "row " + std::to_string(row) + " " +
         std::string(static_cast<size_t>(row * 97 % 6000), static_cast<char>('a' + row % 26));
}

// What a power cut left, and what had been promised before it.
struct Cut {
  PowerCutDisk::Files files;
  int64_t committed;  // Rows 1 to this
  bool created;       // Journal::create() had returned.
};

// Runs a batch of rows and cuts the power before some of the changes to the disk.
std::vector<Cut> cut_power(const std::string& path, std::mt19937& random) {
  std::vector<Cut> cuts;
  int64_t committed = 0;
  bool created = false;
  PowerCutDisk* there = nullptr;
  PowerCutDisk disk([&] {
    // The beginning is a few changes, the rest many.
    if (created && random() % 8 != 0) return;
    cuts.push_back({there->left(random), committed, created});
  });
  there = &disk;
  // Database looks for the file itself before SQLite does.
  auto opened = Journal::create(path, kHead);
  REQUIRE(opened.status().message() == "");
  std::optional<Journal> journal(std::move(opened).value());
  created = true;
  for (int64_t row = 1; cuts.size() < kCuts; ++row) {
    if (row % 5 == 0) {
      const int64_t suspects[] = {row, row + 1};
      REQUIRE(journal->blame(suspects).ok());
    }
    REQUIRE(journal->finish({row, false, 2, 3, line_of(row)}).ok());
    if (random() % 3 != 0) continue;
    REQUIRE(journal->commit().ok());
    committed = row;
    cuts.push_back({disk.left(random), committed, created});
  }
  return cuts;
}

// Back from the disk, with SQLite's own file system.
void check_cut(const Cut& cut, const std::string& path) {
  for (const auto& [name, bytes] : cut.files) {
    std::ofstream(name, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  auto journal = Journal::resume(path, kHead);
  if (!cut.created && !journal.ok()) {
    // Nothing was promised yet. But a journal of nothing must not pass for one that is damaged.
    CHECK(journal.status().code() == Code::kNotFound);
    return;
  }
  REQUIRE(journal.status().message() == "");
  int64_t expected = 1;
  const Status read = journal->for_each([&](int64_t row, std::string_view line) -> Status {
    REQUIRE(row == expected++);
    REQUIRE(line == line_of(row));
    return {};
  });
  REQUIRE(read.ok());
  REQUIRE(expected - 1 >= cut.committed);
}

TEST_CASE("a power cut at any instant loses nothing that was committed") {
  const unsigned seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  const TempDirectory temp;
  const std::string path = temp / "out.jsonl.journal";
  const std::vector<Cut> cuts = cut_power(path, random);
  REQUIRE_FALSE(fs::exists(path));
  int in_between = 0;  // Of which some rows were not committed
  for (size_t i = 0; i < cuts.size(); ++i) {
    INFO("cut " << i << " of " << cuts.size() << ", " << cuts[i].committed << " rows committed");
    check_cut(cuts[i], path);
    in_between += cuts[i].created ? 1 : 0;
    REQUIRE(Journal::remove(path).ok());
  }
  CHECK(in_between > kCuts / 2);
}

}  // namespace
}  // namespace spillway::power_cut_test
