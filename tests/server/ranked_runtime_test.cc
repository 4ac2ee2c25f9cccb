// What ranks of one process divide, and what is refused. (Their tokens: endtoend/ranks_test.cc.)
#include "server/ranked_runtime.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "kernels/base/processors.h"
#include "tests/support/golden.h"
#include "tests/support/places.h"

namespace spillway::ranked_runtime_test {
namespace {

EngineFlags flags_of(int64_t ranks) {
  EngineFlags flags;
  flags.device = "cpu";
  flags.ranks = ranks;
  flags.threads = 8;
  flags.host_memory_bytes = uint64_t{4} << 30;
  return flags;
}

std::string error_of(const std::string& model, const EngineFlags& flags) {
  return std::string(Runtime::open(model, flags, {}).status().message());
}

TEST_CASE("ranks on a CPU divide threads; budgets are of all") {
  EngineFlags flags = flags_of(3);
  flags.disk_memory_bytes = 3000;
  flags.trace = "t.json";
  const std::vector<EngineFlags> all = rank_flags(flags).value();
  REQUIRE(all.size() == 3);
  for (int64_t rank = 0; rank < 3; ++rank) {
    const EngineFlags& own = all[static_cast<size_t>(rank)];
    CHECK(own.rank == rank);
    CHECK(own.ranks == 3);
    CHECK(own.threads == (rank < 2 ? 3 : 2));
    CHECK(own.host_memory_bytes == uint64_t{4} << 30);
    CHECK(own.disk_memory_bytes == 3000);
  }
  CHECK(all[0].trace == "t.json");
  CHECK(all[2].trace == "t.json.rank2");
}

TEST_CASE("ranks on GPUs take those that are named, else one after another") {
  EngineFlags flags = flags_of(1);
  flags.device = "auto";
  flags.gpus = std::vector<int64_t>{2, 0};
  std::vector<EngineFlags> all = rank_flags(flags).value();
  REQUIRE(all.size() == 2);
  CHECK(all[0].gpu == 2);
  CHECK(all[1].gpu == 0);
  CHECK(all[1].device == "cuda");
  CHECK(all[1].ranks == 2);
  flags.gpus.reset();
  flags.device = "cuda";
  flags.ranks = 2;
  flags.gpu = 1;
  all = rank_flags(flags).value();
  CHECK(all[0].gpu == 1);
  CHECK(all[1].gpu == 2);
}

TEST_CASE("what several ranks cannot do is refused with what to do instead") {
  const test::TemporaryCache cache;
  const std::string model = test::read_golden("llama3").checkpoints.front();
  EngineFlags flags = flags_of(9);
  CHECK_THAT(error_of(model, flags),
             Catch::Contains("9 ranks need as many threads") && Catch::Contains("--threads is 8"));
  // It has two KV heads.
  CHECK_THAT(error_of(model, flags_of(4)),
             Catch::Contains("among 4 ranks") && Catch::Contains("may be 2"));
  flags = flags_of(2);
  flags.host_memory_bytes = uint64_t{100} << 20;
  CHECK_THAT(error_of(model, flags),
             Catch::StartsWith("rank 0: ") && Catch::Contains("share of --host-memory 100 MiB"));
  // In validate().
  flags = flags_of(2);
  flags.stages = 2;
  CHECK(validate(flags).ok());
  flags = flags_of(2);
  flags.prefix_cache_bytes = 1000;
  CHECK_THAT(std::string(validate(flags).message()), Catch::Contains("--prefix-cache"));
  flags = flags_of(3);
  flags.device = "cuda";
  flags.gpus = std::vector<int64_t>{0, 1};
  CHECK_THAT(std::string(validate(flags).message()), Catch::Contains("--gpus names 2 GPUs"));
  flags.ranks = 1;
  flags.gpus = std::vector<int64_t>{1, 1};
  CHECK_THAT(std::string(validate(flags).message()), Catch::Contains("names a GPU twice"));
  flags = flags_of(1);
  flags.gpus = std::vector<int64_t>{0, 1};
  CHECK_THAT(std::string(validate(flags).message()), Catch::Contains("--ranks"));
}

TEST_CASE("the smallest budget that ranks say fits does fit") {
  const test::TemporaryCache cache;
  const std::string model = test::read_golden("llama3").checkpoints.front();
  EngineFlags flags = flags_of(2);
  flags.host_memory_bytes = uint64_t{100} << 20;
  const std::string error = error_of(model, flags);
  const size_t at = error.rfind("--host-memory ");
  REQUIRE(at != std::string::npos);
  flags.host_memory_bytes = std::stoull(error.substr(at + 14)) << 20;
  CHECK(error_of(model, flags) == "");
}

TEST_CASE("ranks pack a damaged file of the cache again, as one does") {
  const test::TemporaryCache cache;
  const std::string model = test::read_golden("llama3").checkpoints.front();
  REQUIRE(error_of(model, flags_of(2)) == "");
  int damaged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cache.path())) {
    if (entry.path().extension() != ".spill") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
    file << std::string(64, 'x');
    ++damaged;
  }
  REQUIRE(damaged == 1);
  CHECK(error_of(model, flags_of(2)) == "");
}

TEST_CASE("who drives the engine without a scheduler has the other ranks beside it") {
  const test::TemporaryCache cache;
  const std::string model = test::read_golden("llama3").checkpoints.front();
  RuntimeOptions options;
  options.start_scheduler = false;
  const auto runtime = Runtime::open(model, flags_of(2), options);
  REQUIRE(runtime.status().message() == "");
  REQUIRE(runtime.value()->others() != nullptr);
  CHECK(runtime.value()->others()->sweeps_at_once() == 1);
  CHECK(Runtime::open(model, flags_of(1), options).value()->others() == nullptr);
}

TEST_CASE("a scheduler of ranks that nobody asks is open and ends") {
  const test::TemporaryCache cache;
  const std::string model = test::read_golden("llama3").checkpoints.front();
  for (int i = 0; i < 3; ++i) {
    const auto runtime = Runtime::open(model, flags_of(2), {});
    REQUIRE(runtime.status().message() == "");
    CHECK(runtime.value()->shape().ranks == 2);
    CHECK(runtime.value()->scheduler().stats().healthy);
  }
}

}  // namespace
}  // namespace spillway::ranked_runtime_test
