// The batch journal: what it promises after commits, crashes, damage and misuse.
#include "scheduler/journal.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "scheduler/database.h"
#include "tests/support/full_disk.h"
#include "tests/support/seed.h"

namespace spillway::journal_test {
namespace {

const JournalHead kHead = {{"input", "abc"}, {"model", "tiny"}, {"seed", "1"}};

// A journal's path in a directory of its own, removed at the end.
class Place {
 public:
  Place() {
    std::string pattern = (std::filesystem::temp_directory_path() / "journal-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
    path = directory_ + "/out.jsonl.journal";
  }
  ~Place() { std::filesystem::remove_all(directory_); }
  std::string path;

 private:
  std::string directory_;
};

std::string line_of(int64_t row) {
  return "{\"row\":" + std::to_string(row) + ",\"text\":\"\xC3\xA4\"}";
}

Status finish(Journal& journal, int64_t row, bool failed = false) {
  const std::string line = line_of(row);
  return journal.finish({row, failed, 2, 3, line});
}

std::map<int64_t, std::string> contents(const Journal& journal) {
  std::map<int64_t, std::string> lines;
  int64_t last = 0;
  const Status status = journal.for_each([&](int64_t row, std::string_view line) -> Status {
    CHECK(row > last);
    last = row;
    lines[row] = line;
    return {};
  });
  CHECK(status.ok());
  return lines;
}

TEST_CASE("what was committed is there again, with its counts") {
  const Place place;
  {
    auto journal = Journal::create(place.path, kHead);
    REQUIRE(journal.ok());
    REQUIRE(finish(journal.value(), 7, true).ok());
    REQUIRE(finish(journal.value(), 1).ok());
    CHECK(journal->committed().finished == 0);
    REQUIRE(finish(journal.value(), 9).ok());
    REQUIRE(journal->commit().ok());
    CHECK(journal->committed().finished == 3);
    REQUIRE(finish(journal.value(), 10).ok());
    CHECK(journal->counts().finished == 4);
    CHECK(journal->committed().finished == 3);
  }
  auto journal = Journal::resume(place.path, kHead);
  REQUIRE(journal.ok());
  CHECK(journal->finished(7));
  CHECK_FALSE(journal->finished(3));
  CHECK(journal->counts().finished == 3);
  CHECK(journal->counts().failed == 1);
  CHECK(journal->counts().prompt_tokens == 6);
  CHECK(journal->counts().generated_tokens == 9);
  CHECK(contents(journal.value()) ==
        std::map<int64_t, std::string>{{1, line_of(1)}, {7, line_of(7)}, {9, line_of(9)}});
}

TEST_CASE("what was not committed is gone, whole") {
  const Place place;
  {
    auto journal = Journal::create(place.path, kHead);
    REQUIRE(journal.ok());
    REQUIRE(finish(journal.value(), 1).ok());
  }
  CHECK(contents(Journal::resume(place.path, kHead).value()).empty());
}

TEST_CASE("what a commit could not write is not counted, then or later") {
  const Place place;
  auto journal = Journal::create(place.path, kHead).value();
  for (int64_t row = 1; row <= 5; ++row) REQUIRE(finish(journal, row, row == 2).ok());
  REQUIRE(journal.commit().ok());
  Status first;
  {
    const test::FullDisk full(std::filesystem::file_size(place.path + "-wal"));
    for (int64_t row = 6; row <= 9; ++row) REQUIRE(finish(journal, row).ok());
    CHECK(journal.counts().finished == 9);
    first = journal.commit();
    CHECK_FALSE(first.ok());
    CHECK(journal.committed().finished == 5);
    CHECK(journal.counts().finished == 5);
    CHECK(journal.counts().failed == 1);
  }
  // There is room again, but the rows are gone: nothing may say otherwise.
  CHECK(journal.commit().message() == first.message());
  CHECK(finish(journal, 10).message() == first.message());
  CHECK(journal.committed().finished == 5);
  { const Journal closed = std::move(journal); }
  CHECK(contents(Journal::resume(place.path, kHead).value()).size() == 5);
}

TEST_CASE("an existing journal is never overwritten, a missing one not resumed") {
  const Place place;
  CHECK(Journal::resume(place.path, kHead).status().code() == Code::kNotFound);
  CHECK(Journal::create(place.path, kHead).ok());
  CHECK(Journal::create(place.path, kHead).status().code() == Code::kInvalidArgument);
  CHECK(Journal::inspect(place.path).value().finished == 0);
  CHECK(Journal::remove(place.path).ok());
  CHECK_FALSE(std::filesystem::exists(place.path));
  CHECK(Journal::remove(place.path).ok());
}

TEST_CASE("another run's journal is refused by what differs") {
  const Place place;
  REQUIRE(Journal::create(place.path, kHead).ok());
  JournalHead other = kHead;
  other[2].second = "2";
  const Status status = Journal::resume(place.path, other).status();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(std::string(status.message()).find("seed was 1, now 2") != std::string::npos);
  CHECK(std::string(status.message()).find("model") == std::string::npos);
}

TEST_CASE("a second process is kept out between the first one's transactions, too") {
  const Place place;
  auto journal = Journal::create(place.path, kHead);
  REQUIRE(journal.ok());
  REQUIRE(finish(journal.value(), 1).ok());
  REQUIRE(journal->commit().ok());
  CHECK(Journal::resume(place.path, kHead).status().code() == Code::kCapacity);
}

TEST_CASE("a second process is kept out while the first lives") {
  const Place place;
  auto journal = Journal::create(place.path, kHead);
  REQUIRE(journal.ok());
  REQUIRE(finish(journal.value(), 1).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(Journal::resume(place.path, kHead).status().code() == Code::kCapacity ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("suspects of a crash are cut into parties until one is alone") {
  const Place place;
  {
    auto journal = Journal::create(place.path, kHead);
    REQUIRE(journal.ok());
    REQUIRE(finish(journal.value(), 2).ok());
    REQUIRE(journal->blame(std::vector<int64_t>{4, 2, 1, 3, 0, -5, 5, 4}).ok());
  }
  auto journal = Journal::resume(place.path, kHead);
  REQUIRE(journal.ok());
  CHECK(journal->suspect(2) == nullptr);  // It has its result.
  CHECK(journal->suspect(6) == nullptr);
  const auto party = [&](int64_t row) { return journal->suspect(row)->party; };
  CHECK(party(1) == party(3));
  CHECK(party(4) == party(5));
  CHECK(party(1) != party(4));
  REQUIRE(journal->blame(std::vector<int64_t>{4, 5}).ok());
  CHECK(party(4) != party(5));
  CHECK(party(4) != party(1));
  CHECK_FALSE(journal->suspect(5)->convicted);
  REQUIRE(journal->blame(std::vector<int64_t>{5}).ok());
  CHECK(journal->suspect(5)->convicted);
  CHECK(journal->suspect(5)->crashes == 3);
  CHECK_FALSE(journal->suspect(4)->convicted);
  REQUIRE(journal->blame(std::vector<int64_t>{9}).ok());  // Alone, but for the first time
  CHECK_FALSE(journal->suspect(9)->convicted);
}

TEST_CASE("results of failed rows can be taken back, and convicts get another try") {
  const Place place;
  {
    auto journal = Journal::create(place.path, kHead);
    REQUIRE(journal.ok());
    REQUIRE(finish(journal.value(), 1).ok());
    REQUIRE(finish(journal.value(), 2, true).ok());
    for (int crash = 0; crash < 2; ++crash) {
      REQUIRE(journal->blame(std::vector<int64_t>{3}).ok());
    }
    REQUIRE(journal->suspect(3)->convicted);
    REQUIRE(finish(journal.value(), 3, true).ok());
    REQUIRE(journal->forget_failed().ok());
  }
  auto journal = Journal::resume(place.path, kHead);
  REQUIRE(journal.ok());
  CHECK(contents(journal.value()) == std::map<int64_t, std::string>{{1, line_of(1)}});
  CHECK(journal->counts().finished == 1);
  CHECK(journal->counts().failed == 0);
  REQUIRE(journal->suspect(3) != nullptr);
  CHECK_FALSE(journal->suspect(3)->convicted);
}

TEST_CASE("a journal deletes its own file and no other's") {
  const Place place;
  const auto files = [&] {
    return std::distance(
        std::filesystem::directory_iterator(std::filesystem::path(place.path).parent_path()), {});
  };
  {
    auto journal = Journal::create(place.path, kHead);
    REQUIRE(finish(journal.value(), 1).ok());
    REQUIRE(journal->commit().ok());
    REQUIRE(Journal::discard(std::move(journal).value()).ok());
    CHECK(files() == 0);
  }
  auto first = Journal::create(place.path, kHead);
  REQUIRE(finish(first.value(), 1).ok());
  REQUIRE(first->commit().ok());
  REQUIRE(Journal::remove(place.path).ok());  // By hand, say
  {
    auto second = Journal::create(place.path, kHead);
    REQUIRE(second.ok());
    REQUIRE(finish(second.value(), 7).ok());
    REQUIRE(second->commit().ok());
    REQUIRE(Journal::discard(std::move(first).value()).ok());
    REQUIRE(finish(second.value(), 8).ok());
    REQUIRE(second->commit().ok());
  }
  CHECK(contents(Journal::resume(place.path, kHead).value()) ==
        std::map<int64_t, std::string>{{7, line_of(7)}, {8, line_of(8)}});
}

TEST_CASE("a file without tables, as a crash at creation leaves it, begins anew") {
  const Place place;
  std::ofstream(place.path).close();
  CHECK(Journal::inspect(place.path).value().finished == 0);
  auto journal = Journal::resume(place.path, kHead);
  REQUIRE(journal.ok());
  REQUIRE(finish(journal.value(), 1).ok());
  CHECK(journal->commit().ok());
}

TEST_CASE("files that are no journal are refused") {
  const Place place;
  std::ofstream(place.path) << std::string(4096, 'x');
  CHECK(Journal::resume(place.path, kHead).status().code() == Code::kCorruption);
  REQUIRE(Journal::remove(place.path).ok());
  {
    auto database = Database::open(place.path, Database::Mode::kCreate);
    REQUIRE(database.ok());
    REQUIRE(database->execute("CREATE TABLE rows (a); PRAGMA application_id = 5").ok());
  }
  CHECK(Journal::resume(place.path, kHead).status().code() == Code::kCorruption);
  {
    auto database = Database::open(place.path, Database::Mode::kOpen);
    REQUIRE(database.ok());
    REQUIRE(database->execute("PRAGMA application_id = 1397774154; PRAGMA user_version = 1").ok());
  }
  const Status status = Journal::resume(place.path, kHead).status();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(std::string(status.message()).find("version 1") != std::string::npos);
}

// A journal of 200 rows to damage, a fresh copy each time.
class Damaged {
 public:
  Damaged() {
    {
      auto journal = Journal::create(place_.path, kHead);
      REQUIRE(journal.ok());
      for (int64_t row = 1; row <= 200; ++row) REQUIRE(finish(journal.value(), row).ok());
      REQUIRE(journal->commit().ok());
    }
    bytes = std::filesystem::file_size(place_.path);
    std::filesystem::copy_file(place_.path, whole());
  }

  // True when the damage was noticed; otherwise every row that is there is right.
  template <typename Damage>
  bool refused(Damage damage) {
    REQUIRE(Journal::remove(place_.path).ok());
    std::filesystem::copy_file(whole(), place_.path);
    damage(place_.path);
    auto journal = Journal::resume(place_.path, kHead);
    if (!journal.ok()) return true;
    for (const auto& [row, line] : contents(journal.value())) CHECK(line == line_of(row));
    return false;
  }

  uint64_t bytes = 0;

 private:
  std::string whole() const { return place_.path + ".whole"; }
  Place place_;
};

TEST_CASE("damaged bytes give an error or the right rows, never others") {
  const unsigned seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  Damaged journal;
  for (int round = 0; round < 30; ++round) {
    const uint64_t left = random() % journal.bytes;
    INFO("cut to " << left << " bytes");
    journal.refused([&](const std::string& path) { std::filesystem::resize_file(path, left); });
  }
  for (int round = 0; round < 60; ++round) {
    const uint64_t at = random() % journal.bytes;
    INFO("a bit of byte " << at);
    journal.refused([&](const std::string& path) {
      std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
      file.seekg(static_cast<std::streamoff>(at));
      const int byte = file.get();
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(byte ^ (1 << (random() % 8))));
    });
  }
}

// SQLite reads what is missing of the last page as zeros, and finds nothing wrong with them.
TEST_CASE("a journal cut short inside a result is refused") {
  Damaged journal;
  for (uint64_t missing = 1; missing <= 40; ++missing) {
    INFO(missing << " bytes are missing");
    CHECK(journal.refused([&](const std::string& path) {
      std::filesystem::resize_file(path, journal.bytes - missing);
    }));
  }
}

// A child finishes rows until it is killed; what it reported as committed must be there.
TEST_CASE("kill -9 at any instant loses nothing that was committed") {
  const unsigned seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  const Place place;
  int64_t next = 1;
  for (int round = 0; round < 20; ++round) {
    int pipe_fds[2];
    REQUIRE(::pipe(pipe_fds) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(pipe_fds[0]);
      auto journal =
          round == 0 ? Journal::create(place.path, kHead) : Journal::resume(place.path, kHead);
      if (!journal.ok()) ::_exit(1);
      for (int64_t row = next;; ++row) {
        if (!finish(journal.value(), row).ok()) ::_exit(1);
        if (row % 3 != 0) continue;
        if (!journal->commit().ok()) ::_exit(1);
        if (::write(pipe_fds[1], &row, sizeof(row)) != sizeof(row)) ::_exit(1);
      }
    }
    ::close(pipe_fds[1]);
    int64_t committed = next - 1;
    if (round == 0) REQUIRE(::read(pipe_fds[0], &committed, sizeof(committed)) == 8);
    ::usleep(random() % 20'000);
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    for (int64_t row = 0; ::read(pipe_fds[0], &row, sizeof(row)) == sizeof(row);) committed = row;
    ::close(pipe_fds[0]);

    auto journal = Journal::resume(place.path, kHead);
    REQUIRE(journal.ok());
    const auto lines = contents(journal.value());
    REQUIRE(static_cast<int64_t>(lines.size()) >= committed);
    int64_t expected = 1;
    for (const auto& [row, line] : lines) {
      REQUIRE(row == expected++);
      REQUIRE(line == line_of(row));
    }
    next = expected;
  }
  CHECK(next > 1);
}

}  // namespace
}  // namespace spillway::journal_test
