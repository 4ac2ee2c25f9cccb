// Memory that a run may take, from made-up /proc and /sys and from flags.
#include "scheduler/planning/memory_budget.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/hardware.h"
#include "tests/support/temp_directory.h"

namespace spillway::memory_budget_test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

struct Root {
  explicit Root(const std::string& groups) {
    write("proc/meminfo",
          "MemTotal:       16777216 kB\nMemFree:  100 kB\nMemAvailable:    8388608 kB\n");
    write("proc/self/cgroup", groups);
  }
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = temp / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  uint64_t available() const { return available_host_bytes(temp / ""); }
  TempDirectory temp;
};

TEST_CASE("without a limit all that the kernel calls available can be had") {
  const Root root("0::/\n");
  CHECK(root.available() == 8 * kGiB);
  root.write("sys/fs/cgroup/memory.max", "max\n");
  root.write("sys/fs/cgroup/memory.current", "123456\n");
  CHECK(root.available() == 8 * kGiB);
  root.write("proc/meminfo", "MemTotal: 16777216 kB\n");
  CHECK(root.available() == 0);
}

TEST_CASE("a control group leaves its limit less what it holds besides page cache") {
  const Root root("0::/a/b\n");
  root.write("sys/fs/cgroup/a/b/memory.max", "4294967296\n");
  root.write("sys/fs/cgroup/a/b/memory.current", "3221225472\n");
  CHECK(root.available() == 1 * kGiB);
  root.write("sys/fs/cgroup/a/b/memory.stat",
             "anon 1610612736\nactive_file 536870912\ninactive_file 1073741824\nshmem 5\n");
  CHECK(root.available() == 2 * kGiB + 512 * kMiB);
  // The tightest of those around it counts, and what it is over is not less than nothing.
  root.write("sys/fs/cgroup/a/memory.max", "1073741824\n");
  root.write("sys/fs/cgroup/a/memory.current", "268435456\n");
  CHECK(root.available() == 768 * kMiB);
  root.write("sys/fs/cgroup/a/memory.current", "2147483648\n");
  CHECK(root.available() == 0);
  root.write("sys/fs/cgroup/a/memory.current", "nonsense\n");
  CHECK(root.available() == 2 * kGiB + 512 * kMiB);
}

TEST_CASE("control groups of version 1 limit memory, too") {
  const Root root("9:memory:/docker/1\n0::/\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
  CHECK(root.available() == 1 * kGiB);
}

TEST_CASE("a budget is the flag's, or what is free less a reserve") {
  HardwareProfile hardware = test::sample_hardware(false);
  const auto free_bytes = [&](uint64_t bytes) {
    hardware.host.memory_free_bytes.value = static_cast<double>(bytes);
    return host_budget(hardware, std::nullopt);
  };
  CHECK(host_budget(hardware, 5 * kGiB).bytes == 5 * kGiB);
  CHECK(host_budget(hardware, 5 * kGiB).from_flag);
  CHECK_FALSE(free_bytes(8 * kGiB).from_flag);
  CHECK(free_bytes(8 * kGiB).bytes == 7 * kGiB);
  CHECK(free_bytes(100 * kGiB).bytes == 95 * kGiB);
  CHECK(free_bytes(kMiB).bytes == 0);
  CHECK(device_budget({.free_bytes = 20 * kGiB}, std::nullopt).bytes == 19 * kGiB);
  CHECK(device_budget({.free_bytes = 20 * kGiB}, 30 * kGiB).bytes == 30 * kGiB);
}

TEST_CASE("requests take their bodies, what parsing them costs, and answers by the budget") {
  CHECK(RequestMemory{.body_bytes_max = 0}.total() == 0);
  CHECK(RequestMemory{.body_bytes_max = kMiB}.bodies_bytes_max() == 48 * kMiB);
  CHECK(RequestMemory{.body_bytes_max = 100 * kMiB}.bodies_bytes_max() == 400 * kMiB);
  CHECK(within(kGiB, {}).answers_bytes_max == 64 * kMiB);
  CHECK(within(kMiB, {}).answers_bytes_max == 48 * kMiB);
  CHECK(within(100 * kGiB, {}).answers_bytes_max == kGiB);
  CHECK(within(kGiB, {.answers_bytes_max = 7}).answers_bytes_max == 7);
}

TEST_CASE("the process takes more only for requests and scratch beyond the usual") {
  CHECK(process_bytes(0, 0) == kProcessBytes);
  CHECK(process_bytes(160 * kMiB, 32 * kMiB) == kProcessBytes);
  CHECK(process_bytes(161 * kMiB, 34 * kMiB) == kProcessBytes + 3 * kMiB);
}

}  // namespace
}  // namespace spillway::memory_budget_test
