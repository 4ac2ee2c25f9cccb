// Names, locks and uses of the files in the cache folder.
#include "offload/model_cache.h"

#include <fcntl.h>
#include <sys/file.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace spillway::offload_model_cache_test {
namespace {

namespace fs = std::filesystem;

void make_old(const std::string& path) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1000));
}

TEST_CASE("the cache knows the names that it gives, and no others") {
  const std::string print = "0123456789abcdef0123456789abcdef";
  for (const char* model :
       {"opt-6.7b", "my model/with\nanything", "", ".hidden", "a-0123456789abcdef-b", "-"}) {
    for (const char* format : {"auto", "auto-bf16", "q4_1", "q4", "q8"}) {
      for (const MatrixLayout layout :
           {MatrixLayout::kRows, MatrixLayout::kPanels16, MatrixLayout::kPanels64}) {
        const std::string name = cached_file_name(model, print, format, layout);
        INFO(name);
        CHECK(is_cached_file_name(name));
        CHECK_FALSE(is_cached_file_name(name + ".lock"));
        CHECK_FALSE(is_cached_file_name("." + name));
        CHECK(name.find('/') == std::string::npos);
      }
    }
  }
  for (const char* other : {"", ".spill", "mine.spill", "opt-0123456789abcdef.spill",
                            "opt-0123456789abcde-auto.spill", "-0123456789abcdef-auto.spill",
                            "opt-0123456789ABCDEF-auto.spill", "opt-0123456789abcdef-.spill",
                            "opt-0123456789abcdef-au to.spill", "opt-0123456789abcdef-auto"}) {
    INFO(other);
    CHECK_FALSE(is_cached_file_name(other));
  }
}

TEST_CASE("a lock is one process's, until it is given back or its file is removed") {
  const TempDirectory temp;
  const std::string packed = temp / "m.spill";
  auto first = CacheLock::try_take(packed);
  REQUIRE((first.ok() && first.value()));
  CHECK_FALSE(CacheLock::try_take(packed).value());
  int waits = 0;
  const auto refused = CacheLock::take(packed, [&]() -> Status {
    return ++waits < 2 ? Status() : Status(Code::kCancelled, "enough");
  });
  CHECK(refused.status().message() == "enough");
  CHECK(waits == 2);
  // Who waited for a file that was removed meanwhile takes the next one.
  std::atomic<bool> taken = false;
  std::jthread waiter([&] { taken = CacheLock::take(packed, [] { return Status(); }).ok(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(first.value()->remove().ok());
  CHECK_FALSE(fs::exists(packed + ".lock"));
  first.value().reset();
  waiter.join();
  CHECK(taken);
  CHECK(fs::exists(packed + ".lock"));
  CHECK(CacheLock::try_take(temp / "nowhere/m.spill").status().code() == Code::kNotFound);
}

TEST_CASE("a use is recorded at its begin and end, and excludes removal meanwhile") {
  const TempDirectory temp;
  const std::string packed = temp / "m.spill";
  write_file(packed, "weights");
  make_old(packed);
  const auto made = fs::last_write_time(packed);
  const int64_t before = last_use_ns(packed).value();
  const File other = File::open(packed, O_RDWR).value();
  // Outside a cache there is no lock's file, and nothing is recorded.
  { CHECK(ModelUse::begin(packed) != nullptr); }
  CHECK_FALSE(fs::exists(packed + ".lock"));
  CHECK(last_use_ns(packed).value() == before);
  REQUIRE(CacheLock::try_take(packed).value());
  make_old(packed + ".lock");
  {
    const auto use = ModelUse::begin(packed);
    const auto another = ModelUse::begin(packed);
    REQUIRE((use && another));
    CHECK(last_use_ns(packed).value() > before + 999 * int64_t{3600} * 1'000'000'000);
    CHECK_FALSE(try_lock(other, LOCK_EX).value());
    make_old(packed + ".lock");
  }
  CHECK(last_use_ns(packed).value() > before + 999 * int64_t{3600} * 1'000'000'000);
  CHECK(fs::last_write_time(packed) == made);
  CHECK(try_lock(other, LOCK_EX).value());
  CHECK(ModelUse::begin(temp / "nothing") == nullptr);
  CHECK(last_use_ns(temp / "nothing").status().code() == Code::kNotFound);
}

TEST_CASE("who begins a use waits for those who look") {
  const TempDirectory temp;
  const std::string packed = temp / "m.spill";
  write_file(packed, "weights");
  File looking = File::open(packed, O_RDWR).value();
  REQUIRE(try_lock(looking, LOCK_EX).value());
  std::jthread looker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    looking = File();
  });
  CHECK(ModelUse::begin(packed) != nullptr);
}

}  // namespace
}  // namespace spillway::offload_model_cache_test
