#include "offload/io/spill_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "offload/io/aligned_bytes.h"
#include "tests/support/skip.h"
#include "tests/support/temp_directory.h"

namespace spillway::spill_file_test {
namespace {

namespace fs = std::filesystem;

std::set<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

void prefault(const std::string& path) {
  std::ofstream(path) << "x";
}

uint64_t allocated_bytes(const File& file) {
  struct stat info {};
  REQUIRE(fstat(file.fd(), &info) == 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

// A process that makes a spill file of 64 MiB, writes a byte to `ready` and waits for its end.
pid_t start_holder(const std::string& directory, int ready) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const auto spill = SpillDirectory::open(directory);
  const auto file = spill.ok() ? spill.value().create(64 << 20) : spill.status();
  const char answer = file.ok() ? 'y' : 'n';
  if (write(ready, &answer, 1) != 1) _exit(1);
  for (;;) pause();
}

}  // namespace

TEST_CASE("spill file: private, reserved, direct, without a name, gone when closed") {
  const TempDirectory temp;
  const std::string path = temp / "a/b/spill";
  const SpillDirectory directory = SpillDirectory::open(path).value();
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);

  constexpr uint64_t kBytes = uint64_t{512} << 20;
  Result<File> file = directory.create(kBytes);
  REQUIRE(file.ok());
  CHECK(names_in(path).empty());
  CHECK(file->path().starts_with(path + "/"));
  REQUIRE(fstat(file->fd(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(info.st_nlink == 0);
  CHECK(file->stamp().value().bytes == kBytes);
  CHECK(allocated_bytes(file.value()) >= kBytes);

  AlignedBytes memory;
  const auto page = memory.reserve(4096);
  std::memset(page.data(), 7, page.size());
  REQUIRE(file->write(kBytes - 4096, page).ok());
  std::memset(page.data(), 0, page.size());
  REQUIRE(file->read(kBytes - 4096, page).ok());
  CHECK(page[4095] == std::byte{7});
  if ((fcntl(file->fd(), F_GETFL) & O_DIRECT) == 0) {
    test::skip(path + " is on a file system without O_DIRECT");
  } else {
    CHECK_FALSE(file->write(1, page).ok());  // As only O_DIRECT refuses
  }
}

TEST_CASE("spill file: a full disk is known at the start, in numbers") {
  const TempDirectory temp;
  const SpillDirectory directory = SpillDirectory::open(temp.path()).value();
  const Status status = directory.create(uint64_t{1} << 60).status();
  CHECK(status.code() == Code::kCapacity);
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("spilling needs 1.00 EiB, " + temp.path() + " has ") &&
                 Catch::Contains("free; make room") && Catch::Contains("--disk-dir"));
  CHECK(names_in(temp.path()).empty());
}

TEST_CASE("spill file: several directories share it evenly, and none keeps a name") {
  const TempDirectory temp;
  const std::vector<std::string> paths = {temp / "a", temp / "b", temp / "c"};
  const SpillDirectory directory = SpillDirectory::open(paths).value();
  constexpr uint64_t kBytes = 20 * kStripeBytes + 4096, kLater = 8 * kStripeBytes;
  const File file = directory.create(kBytes, kLater).value();
  REQUIRE(file.parts().size() == 3);
  uint64_t reserved = 0;
  for (size_t i = 0; i < 3; ++i) {
    CHECK(names_in(paths[i]).empty());
    CHECK(file.parts()[i].path().starts_with(paths[i] + "/"));
    const uint64_t share = allocated_bytes(file.parts()[i]);
    CHECK(share >= 6 * kStripeBytes);
    CHECK(share <= 7 * kStripeBytes + 4096);
    reserved += share;
  }
  CHECK(reserved >= kBytes);
  CHECK(file.stamp().value().bytes == kBytes + kLater);
  AlignedBytes owner;
  const auto memory = owner.reserve(2 * kStripeBytes);
  for (const uint64_t at :
       {uint64_t{4096}, kBytes - kStripeBytes, kBytes + kLater - memory.size()}) {
    std::memset(memory.data(), static_cast<int>(at % 251), memory.size());
    REQUIRE(file.write(at, memory).ok());
    std::memset(memory.data(), 0, memory.size());
    REQUIRE(file.read(at, memory).ok());
    CHECK(memory.back() == static_cast<std::byte>(at % 251));
  }
}

TEST_CASE("spill file: of several directories the one without room is named") {
  const TempDirectory temp;
  // Another file system, with another amount of free space.
  const std::string other = "/dev/shm/spillway-test-" + std::to_string(getpid());
  const Result<SpillDirectory> opened = SpillDirectory::open({temp.path(), other});
  if (!opened.ok() || fs::equivalent(temp.path(), "/dev/shm")) {
    return test::skip("no second file system here");
  }
  const uint64_t here = free_disk_bytes(temp.path()).value();
  const uint64_t there = free_disk_bytes(other).value();
  const uint64_t both = free_striped_bytes({temp.path(), other}).value();
  CHECK(both <= 2 * std::min(here, there));
  // (Others use the disk, too.)
  CHECK(static_cast<double>(both) > 1.5 * static_cast<double>(std::min(here, there)));
  const std::string fuller = here < there ? temp.path() : other;
  const Status status = opened->create(3 * std::min(here, there)).status();
  if (3 * std::min(here, there) / 2 < std::max(here, there)) {
    CHECK(status.code() == Code::kCapacity);
    CHECK_THAT(std::string(status.message()), Catch::Contains(", " + fuller + " has "));
  }
  CHECK(names_in(temp.path()).empty());
  CHECK(names_in(other).empty());
  fs::remove(other);
}

TEST_CASE("spill file: directories of one disk share its free space") {
  const TempDirectory temp;
  const auto one = static_cast<double>(free_disk_bytes(temp.path()).value());
  const auto three = static_cast<double>(
      free_striped_bytes({temp / "a", temp / "b/not/yet", temp.path()}).value());
  CHECK(three <= 1.1 * one);
  CHECK(three >= 0.9 * one);
  CHECK(free_striped_bytes({}).value() == 0);
  prefault(temp / "file");
  const Status status = SpillDirectory::open({temp / "good", temp / "file/below"}).status();
  CHECK(status.code() == Code::kIoError);
  CHECK_THAT(std::string(status.message()), Catch::Contains(temp / "file"));
}

TEST_CASE("spill file: a directory that cannot be one is an error that names it") {
  const TempDirectory temp;
  prefault(temp / "file");
  for (const std::string& path : {temp / "file", temp / "file/below"}) {
    const Status status = SpillDirectory::open(path).status();
    CHECK(status.code() == Code::kIoError);
    CHECK_THAT(std::string(status.message()), Catch::Contains(temp / "file"));
  }
}

TEST_CASE("spill file: the sweep takes what crashed processes left and nothing else") {
  const TempDirectory temp;
  const std::string ours = ".spillway-scratch-0123456789abcdef";
  const std::set<std::string> others = {
      "model.spill",
      ".spillway-scratch-",
      ".spillway-scratch-0123456789abcde",
      ".spillway-scratch-0123456789abcdeg",
      ".spillway-scratch-0123456789abcdef0",
      "x.spillway-scratch-0123456789abcdef",
      ".spillway-scratch-1111111111111111",  // A directory
      ".spillway-scratch-2222222222222222",  // A link
  };
  fs::create_directory(temp / ".spillway-scratch-1111111111111111");
  fs::create_symlink("model.spill", temp / ".spillway-scratch-2222222222222222");
  for (const std::string& name : others) {
    if (!fs::exists(temp / name)) prefault(temp / name);
  }
  prefault(temp / ours);
  REQUIRE(SpillDirectory::open(temp.path()).ok());
  CHECK(names_in(temp.path()) == others);
}

TEST_CASE("spill file: processes share a directory, and a killed one leaves nothing") {
  const TempDirectory temp;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t first = start_holder(temp.path(), ready[1]);
  const pid_t second = start_holder(temp.path(), ready[1]);
  REQUIRE(first > 0);
  REQUIRE(second > 0);
  char answers[2] = {};
  for (char& answer : answers) {
    REQUIRE(read(ready[0], &answer, 1) == 1);
    CHECK(answer == 'y');
  }
  // Opening, and so sweeping, harms none of them.
  REQUIRE(SpillDirectory::open(temp.path()).ok());
  for (const pid_t pid : {first, second}) {
    kill(pid, SIGKILL);
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status));
  }
  close(ready[0]);
  close(ready[1]);
  CHECK(names_in(temp.path()).empty());
}

TEST_CASE("spill file: a process killed at any moment leaves what the next open removes") {
  const TempDirectory temp;
  for (int round = 0; round < 20; ++round) {
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      const auto spill = SpillDirectory::open(temp.path());
      while (spill.ok()) {
        if (!spill.value().create(4096).ok()) _exit(1);
      }
      _exit(1);
    }
    usleep(static_cast<useconds_t>(1000 + round * 317));
    kill(pid, SIGKILL);
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status));
  }
  REQUIRE(SpillDirectory::open(temp.path()).ok());
  CHECK(names_in(temp.path()).empty());
}

}  // namespace spillway::spill_file_test
