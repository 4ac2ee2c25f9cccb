// Scratch files striped over several folders: the same tokens, from all of them.
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "offload/io/spill_file.h"
#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/golden.h"
#include "tests/support/random_data.h"
#include "tests/support/temp_directory.h"

namespace spillway::endtoend_disk_dirs_test {
namespace {

EngineFlags flags_of(std::vector<std::string> folders, bool on_disk) {
  EngineFlags flags;
  flags.device = "cpu";
  flags.dummy_weights = true;
  flags.format = Format::kBF16;
  flags.threads = 2;
  flags.block = 6;
  flags.host_memory_bytes = uint64_t{1} << 30;
  flags.disk_memory_bytes = uint64_t{1} << 30;
  flags.disk_dirs = std::move(folders);
  const TierPercent disk{0, 0, 100};
  if (on_disk) flags.weights = flags.kv = flags.activations = disk;
  return flags;
}

std::unique_ptr<Runtime> open(const EngineFlags& flags) {
  Result<std::unique_ptr<Runtime>> runtime = Runtime::open("opt-125m", flags, {});
  INFO(runtime.status().message());
  REQUIRE(runtime.ok());
  return std::move(runtime).value();
}

uint64_t written_bytes(const std::string& path) {
  const File file = File::open(path, O_RDONLY).value();
  uint64_t bytes = 0;
  for (off_t at = 0;;) {
    const off_t data = ::lseek(file.fd(), at, SEEK_DATA);
    if (data < 0) return bytes;
    at = ::lseek(file.fd(), data, SEEK_HOLE);
    bytes += static_cast<uint64_t>(at - data);
  }
}

TEST_CASE("scratch files over several folders give the tokens of one, and of memory") {
  const test::TemporaryCache cache;
  const TempDirectory temp;
  std::mt19937_64 random(5);
  std::vector<Request> requests(8);
  test::Answers expected;
  {
    const auto runtime = open(flags_of({}, false));
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].prompt = test::random_prompt(random, 150, runtime->shape().vocabulary);
      requests[i].max_tokens = 6;
      requests[i].ignore_eos = true;
      if (i % 3 == 0) requests[i].sampling.temperature = 0.8f;
      requests[i].sampling.seed = i;
    }
    expected = test::run_together(*runtime, requests);
  }
  const std::vector<std::vector<std::string>> places = {
      {temp / "a"}, {temp / "a", temp / "b"}, {temp / "b", temp / "c", temp / "a,d"}};
  for (const auto& folders : places) {
    INFO(folders.size() << " folders");
    const auto runtime = open(flags_of(folders, true));
    CHECK(test::difference(requests, expected, test::run_together(*runtime, requests), 0) == "");
    const Plan& plan = runtime->plan();
    CHECK(plan.disk_dirs == folders);
    REQUIRE(plan.weights_files.size() == folders.size());
    REQUIRE(plan.kv_files.size() == folders.size());
    // The weights fill their file, the cache has used some of every part of its own.
    uint64_t most = 0, least = UINT64_MAX;
    for (size_t i = 0; i < folders.size(); ++i) {
      most = std::max(most, written_bytes(plan.weights_files[i]));
      least = std::min(least, written_bytes(plan.weights_files[i]));
      CHECK(written_bytes(plan.kv_files[i]) > 0);
      CHECK(std::filesystem::is_empty(folders[i]));  // Neither has a name
    }
    CHECK(least > 0);
    CHECK(most - least <= uint64_t{2} << 20);
  }
}

TEST_CASE("of several folders the one with the least room is named at the start") {
  const TempDirectory temp;
  const std::string other = "/dev/shm/spillway-test-" + std::to_string(::getpid());
  const auto here = static_cast<double>(free_disk_bytes(temp.path()).value());
  const Result<uint64_t> shared = free_disk_bytes(other);
  const double there = shared.ok() ? static_cast<double>(shared.value()) : here;
  std::string said;
  RuntimeOptions options;
  options.say = [&](const std::string& line) { said += line + "\n"; };
  REQUIRE(Runtime::open("opt-125m", flags_of({temp / "a", other}, false), options).ok());
  std::filesystem::remove(other);
  INFO(said);
  const std::string fuller = here < there ? temp / "a" : other;
  const double share = std::min(here, there) / std::max(here, there);
  if (share < 0.45) CHECK_THAT(said, Catch::Contains("equal share") && Catch::Contains(fuller));
  if (share > 0.55) CHECK_THAT(said, !Catch::Contains("equal share"));
  said.clear();
  REQUIRE(Runtime::open("opt-125m", flags_of({temp / "a", temp / "b"}, false), options).ok());
  CHECK_THAT(said, !Catch::Contains("equal share"));
}

}  // namespace
}  // namespace spillway::endtoend_disk_dirs_test
