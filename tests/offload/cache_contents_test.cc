// What lies in the cache folder, and which of it is removed.
#include "offload/cache_contents.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>

#include "offload/io/file.h"
#include "offload/model_cache.h"
#include "offload/model_source.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace spillway::cache_contents_test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kHour = int64_t{3600} * 1'000'000'000;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

struct Cache {
  TempDirectory temp;
  std::string folder = temp / "cache";

  // Packs a model of this name and returns its packed file, which was used `hours` ago.
  std::string pack(const std::string& name, int hours, Format format = Format::kF32) const {
    const std::string directory = temp / name;
    const ModelShape shape = checkpoint_shape();
    if (fs::create_directories(directory)) {
      write_file(directory + "/config.json", opt_config(shape));
      write_file(directory + "/model.safetensors", safetensors_file(opt_tensors(shape)));
    }
    ModelSourceOptions options;
    options.cache_directory = folder;
    options.format = format;
    const std::string packed = resolve_model(directory, options).value().path;
    for (const std::string& path : {packed, packed + ".lock"}) {
      fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(hours));
    }
    return packed;
  }
  CacheContents list() const {
    auto contents = list_cache(folder, true);
    REQUIRE(contents.status().message() == "");
    return std::move(contents).value();
  }
  std::vector<std::string> prune(const CacheLimits& limits, bool dry_run = false) const {
    std::vector<std::string> removed;
    const PruneResult result = prune_cache(list(), limits, now_ns(), dry_run);
    CHECK(result.failures.empty());
    for (const RemovedFile& file : result.removed) removed.push_back(file.path);
    if (!dry_run) CHECK(result.bytes_left == list().bytes());
    return removed;
  }
};

using Paths = std::vector<std::string>;

TEST_CASE("a cache lists what it made, the least recently used first") {
  const Cache cache;
  CHECK(cache.list().models.empty());  // There is no such folder yet.
  const std::string young = cache.pack("young", 1), old = cache.pack("old", 50, Format::kQ4);
  const std::string partial = cache.folder + "/m-0123456789abcdef-auto.spill.partial";
  write_file(partial, "half");
  write_file(cache.folder + "/hardware-cpu.json", "{}");
  const CacheContents contents = cache.list();
  REQUIRE(contents.models.size() == 2);
  const CachedModel& first = contents.models[0];
  CHECK(first.path == old);
  CHECK(first.bytes == fs::file_size(old));
  CHECK(first.name == "old");
  CHECK(first.format == Format::kQ4);
  CHECK(first.layout == MatrixLayout::kPanels16);
  CHECK(first.origin == cache.temp / "old");
  CHECK(first.origin_state == OriginState::kUnchanged);
  CHECK(first.damage == "");
  CHECK_FALSE(first.in_use);
  CHECK(std::abs(now_ns() - first.used_ns - 50 * kHour) < kHour);
  CHECK(contents.models[1].path == young);
  REQUIRE(contents.partial.size() == 1);
  CHECK(contents.partial[0].path == partial);
  CHECK_FALSE(contents.partial[0].in_use);
  REQUIRE(contents.profiles.size() == 1);
  CHECK(contents.bytes() == fs::file_size(old) + fs::file_size(young) + 4);
}

TEST_CASE("what became of a packed file's checkpoint is known") {
  const Cache cache;
  cache.pack("model", 1);
  const auto state = [&] { return cache.list().models.at(0).origin_state; };
  CHECK(state() == OriginState::kUnchanged);
  write_file(cache.temp / "model/vocab.json", "{}");
  CHECK(state() == OriginState::kChanged);
  fs::rename(cache.temp / "model", cache.temp / "moved");
  CHECK(state() == OriginState::kGone);
  write_file(cache.temp / "model", "no directory");
  CHECK(state() == OriginState::kUnknown);
  CHECK(list_cache(cache.folder, false)->models[0].origin_state == OriginState::kUnknown);
}

TEST_CASE("a damaged packed file is the cache's all the same") {
  const Cache cache;
  const std::string packed = cache.pack("model", 1);
  fs::resize_file(packed, 5000);
  CHECK_THAT(cache.list().models.at(0).damage, Catch::Contains(packed));
  CHECK(cache.prune({.bytes_max = 0}) == Paths{packed});
}

TEST_CASE("the least recently used go until the others fit") {
  const Cache cache;
  const std::string a = cache.pack("a", 30), b = cache.pack("b", 20), c = cache.pack("c", 10);
  const uint64_t one = fs::file_size(a);  // The others are of about this size.
  CHECK(cache.prune({}).empty());
  CHECK(cache.prune({.bytes_max = 3 * one + 4096}).empty());
  CHECK(cache.prune({.bytes_max = one + 4096}, true) == Paths{a, b});
  CHECK(fs::exists(a));
  CHECK(cache.prune({.bytes_max = 2 * one + 4096}) == Paths{a});
  CHECK_FALSE(fs::exists(a));
  CHECK_FALSE(fs::exists(a + ".lock"));
  CHECK(fs::exists(b + ".lock"));
  // A use makes it the last to go.
  { CHECK(ModelUse::begin(b) != nullptr); }
  CHECK(cache.prune({.bytes_max = one + 4096}) == Paths{c});
  // It is packed again when it is needed.
  CHECK(cache.pack("a", 1) == a);
  CHECK(cache.prune({.bytes_max = 0}).size() == 2);
  CHECK(fs::is_empty(cache.folder));
}

TEST_CASE("what was not used for long goes, and both limits hold together") {
  const Cache cache;
  const std::string a = cache.pack("a", 300), b = cache.pack("b", 200), c = cache.pack("c", 10);
  CHECK(cache.prune({.unused_seconds_max = 400.0 * 3600}).empty());
  CHECK(cache.prune({.unused_seconds_max = 250.0 * 3600}) == Paths{a});
  CHECK(cache.prune({.bytes_max = 0, .unused_seconds_max = 100.0 * 3600}) == Paths{b, c});
}

TEST_CASE("what a process uses, makes or writes is not removed") {
  const Cache cache;
  const std::string a = cache.pack("a", 30), b = cache.pack("b", 20), c = cache.pack("c", 10);
  const auto use = ModelUse::begin(a);
  const auto making = CacheLock::try_take(b);
  REQUIRE((use && making.ok() && making.value()));
  const std::string partial = b + ".partial";
  write_file(partial, "half");
  {
    const File writing = File::open(partial, O_RDWR).value();
    REQUIRE(try_lock(writing, LOCK_EX).value());
    CHECK(cache.list().partial.at(0).in_use);
    const PruneResult result = prune_cache(cache.list(), {.bytes_max = 0}, now_ns(), false);
    REQUIRE(result.removed.size() == 1);
    CHECK(result.removed[0].path == c);
    CHECK(result.in_use == Paths{b, a});
    CHECK(result.bytes_left == fs::file_size(a) + fs::file_size(b) + 4);
  }
  for (const std::string& path : {a, b, partial, a + ".lock", b + ".lock"}) CHECK(fs::exists(path));
}

TEST_CASE("what interrupted conversions left goes in any case, other files never") {
  const Cache cache;
  const std::string packed = cache.pack("model", 1);
  const std::string alone = cache.folder + "/m-0123456789abcdef-auto.spill";
  write_file(alone + ".partial", "half");
  write_file(packed + ".partial", "half");
  write_file(cache.folder + "/n-0123456789abcdef-q4.spill.lock", "");
  const Paths others = {"mine.spill", "mine.spill.partial", "mine.spill.lock", "hardware-x.json",
                        "notes-0123456789abcdef-x.txt"};
  for (const std::string& name : others) write_file(cache.folder + "/" + name, "mine");
  // Links and folders are not the cache's, whatever their names.
  fs::create_directory(cache.folder + "/d-0123456789abcdef-auto.spill");
  write_file(cache.temp / "target", "mine");
  fs::create_symlink(cache.temp / "target", cache.folder + "/l-0123456789abcdef-auto.spill");
  CHECK(cache.prune({}, true).size() == 2);
  CHECK(fs::exists(alone + ".partial"));
  CHECK(cache.prune({}) == Paths{alone + ".partial", packed + ".partial"});
  CHECK(fs::exists(packed));
  CHECK(fs::exists(packed + ".lock"));
  CHECK(cache.prune({.bytes_max = 0, .unused_seconds_max = 0.0}) == Paths{packed});
  size_t left = 0;
  for (const auto& entry : fs::directory_iterator(cache.folder)) {
    INFO(entry.path().string());
    const std::string name = entry.path().filename().string();
    CHECK((std::find(others.begin(), others.end(), name) != others.end() || name[1] == '-'));
    ++left;
  }
  CHECK(left == others.size() + 2);
  CHECK(fs::exists(cache.temp / "target"));
}

TEST_CASE("a folder that cannot be listed is an error") {
  const TempDirectory temp;
  write_file(temp / "file", "");
  const Status refused = list_cache(temp / "file", false).status();
  CHECK_THAT(std::string(refused.message()), Catch::Contains(temp / "file"));
}

}  // namespace
}  // namespace spillway::cache_contents_test
