// `spillway batch` and its files: an input that changes, an output that is there already, a journal
// that somebody else has, what a journal holds.
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/server/cli/batch/batch_fixture.h"

namespace spillway::batch_test::batch_files_test {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// About 700 KB: several of the pieces by which an input is held against what it was.
std::string long_input() {
  std::string text;
  for (int i = 0; i < 700; ++i) {
    text += "{\"prompt\":[" + std::to_string(100 + i) + "],\"max_tokens\":2,\"user\":\"" +
            std::string(1000, 'u') + "\"}\n";
  }
  return text;
}

TEST_CASE("what is appended to the input while it runs does not count") {
  Place place;
  place.write_input(mixed_input(50));
  const auto whole = place.whole();
  place.on_load = [&] {
    std::ofstream(place.flags.input, std::ios::app) << "{\"prompt\":[9],\"max_tokens\":1}\n";
  };
  REQUIRE(place.run().ok());
  CHECK(place.rows() == whole);
}

TEST_CASE("an input that changes stops the run, which goes on with the original") {
  Place place;
  const std::string text = long_input();
  place.write_input(text);
  const auto whole = place.whole();
  const bool cut = GENERATE(false, true);
  place.on_load = [&] {
    std::string other = text;
    other[600'000] = 'v';
    place.write_input(cut ? text.substr(0, 600'000) : other);
  };
  const Status status = place.run();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(status.message()),
             Catch::Contains(cut ? "is shorter than it was" : "has changed") &&
                 Catch::Contains("--resume") && Catch::Contains("--export"));
  CHECK_FALSE(std::filesystem::exists(place.flags.output));
  const int64_t done = Journal::inspect(place.journal()).value().finished;
  CHECK(done > 0);
  CHECK(done < 700);

  BatchFlags flags;
  flags.export_journal = place.journal();
  flags.output = place.flags.output + ".part";
  REQUIRE(export_batch(flags).ok());
  const std::string part = read_file(flags.output);
  CHECK(std::count(part.begin(), part.end(), '\n') == done);
  CHECK(export_batch(flags).code() == Code::kInvalidArgument);  // It is there now.
  flags.overwrite = true;
  CHECK(export_batch(flags).ok());
  flags.export_journal = place.flags.input;
  CHECK_FALSE(export_batch(flags).ok());
  CHECK(read_file(flags.output) == part);

  place.on_load = nullptr;
  place.write_input(text);
  place.flags.resume = true;
  REQUIRE(place.run().ok());
  CHECK(place.rows() == whole);
}

TEST_CASE("an input that is deleted or renamed while it runs is read to its end") {
  Place place;
  place.write_input(long_input());
  const auto whole = place.whole();
  place.on_load = [&] { std::filesystem::remove(place.flags.input); };
  REQUIRE(place.run().ok());
  CHECK(place.rows() == whole);
}

TEST_CASE("a journal with more rows than the input is an error, not the end of the program") {
  Place place;
  place.write_input(plain_input(5));
  MadeUpScheduler broken;
  broken.break_after_tokens = 4;
  REQUIRE_FALSE(place.run(&broken).ok());
  {
    Journal journal = Journal::open(place.journal()).value();
    REQUIRE(journal.finish({77, false, 1, 1, "{}"}).ok());
    REQUIRE(journal.commit().ok());
  }
  place.flags.resume = true;
  const Status status = place.run();
  CHECK(status.code() == Code::kCorruption);
  CHECK_THAT(std::string(status.message()), Catch::Contains("6 lines") && Catch::Contains("has 5"));
}

TEST_CASE("an output that is there is replaced only when that is asked for") {
  Place place;
  place.write_input(plain_input(3));
  std::ofstream(place.flags.output) << "precious\n";
  std::ofstream(place.flags.output + ".tmp") << "somebody's\n";
  place.flags.resume = GENERATE(false, true);
  const Status status = place.run();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Contains("--overwrite"));
  CHECK(place.loads == 0);
  CHECK(place.read_output() == "precious\n");
  place.flags.overwrite = true;
  REQUIRE(place.run().ok());
  CHECK(place.rows().size() == 3);
  CHECK(read_file(place.flags.output + ".tmp") == "somebody's\n");
  place.flags.overwrite = false;
  CHECK(place.run().ok() == place.flags.resume);  // Its own output is nothing to resume.
  CHECK(place.rows().size() == 3);
}

TEST_CASE("an output that is a symbolic link is written through") {
  Place place;
  place.write_input(plain_input(3));
  const std::string target = place.flags.input + ".elsewhere";
  std::filesystem::create_symlink(target, place.flags.output);
  SECTION("to a file") {
    std::ofstream(target) << "old\n";
    CHECK(place.run().code() == Code::kInvalidArgument);
    CHECK(read_file(target) == "old\n");
    place.flags.overwrite = true;
  }
  SECTION("to nothing yet") {}
  REQUIRE(place.run().ok());
  CHECK(std::filesystem::is_symlink(place.flags.output));
  CHECK(std::filesystem::is_regular_file(std::filesystem::symlink_status(target)));
  CHECK(place.rows().size() == 3);
}

TEST_CASE("a journal that another process holds is named so, and not to be deleted") {
  Place place;
  place.write_input(plain_input(3));
  const auto held = Journal::create(place.journal(), {});
  REQUIRE(held.ok());
  place.flags.resume = GENERATE(false, true);
  const Status status = place.run();
  CHECK(status.code() == Code::kCapacity);
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("in use by another process") && !Catch::Contains("delete"));
  CHECK(place.loads == 0);
  BatchFlags flags;
  flags.export_journal = place.journal();
  flags.output = place.flags.output;
  CHECK(export_batch(flags).code() == Code::kCapacity);
}

TEST_CASE("what can be refused is refused before weights are loaded") {
  Place place;
  place.write_input(plain_input(40));
  MadeUpScheduler broken;
  broken.break_after_tokens = 20;
  REQUIRE_FALSE(place.run(&broken).ok());
  const int loads = place.loads, packs = place.packs;
  place.flags.resume = true;
  SECTION("another seed") {
    place.setup.settings = {{"seed", "9"}};
  }
  SECTION("another input") {
    place.write_input(plain_input(41));
  }
  SECTION("another model") {
    place.source = "tiny 2";
  }
  SECTION("not resumed") {
    place.flags.resume = false;
  }
  CHECK(place.run().code() == Code::kInvalidArgument);
  CHECK(place.loads == loads);
  CHECK(place.packs == packs);
}

}  // namespace
}  // namespace spillway::batch_test::batch_files_test
