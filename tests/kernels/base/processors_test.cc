// Processors and limits of control groups, from made-up /proc and /sys.
#include "kernels/base/processors.h"

#include <sched.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "kernels/base/cgroup.h"
#include "tests/support/temp_directory.h"

namespace spillway::processors_test {
namespace {

struct Root {
  TempDirectory temp;
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = temp / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::optional<double> quota() const { return cpu_quota(temp / ""); }
};

TEST_CASE("the CPU quota is the smallest of the control groups that the process is in") {
  const Root root;
  CHECK_FALSE(root.quota());  // No control groups at all
  root.write("proc/self/cgroup", "0::/a/b\n");
  CHECK_FALSE(root.quota());
  root.write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  CHECK_FALSE(root.quota());
  root.write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  CHECK(root.quota() == 1.5);
  root.write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  CHECK(root.quota() == 1.5);
  root.write("sys/fs/cgroup/a/b/cpu.max", "10000 20000\n");
  CHECK(root.quota() == 0.5);
  root.write("sys/fs/cgroup/a/b/cpu.max", "nonsense");
  CHECK(root.quota() == 1.5);
}

TEST_CASE("a container's quota stands where the root's would, in version 1, too") {
  const Root root;
  root.write("proc/self/cgroup", "7:blkio:/x\n5:cpu,cpuacct:/docker/1\n0::/y\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK_FALSE(root.quota());
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
  CHECK(root.quota() == 2.5);
}

TEST_CASE("the folders of a control group are its own and those around it") {
  const Root root;
  root.write("proc/self/cgroup", "4:memory:/\n3:mem:/no\n0::/a.slice/b.scope\nnonsense\n");
  const CgroupFolders folders = cgroup_folders("memory", root.temp / "");
  CHECK(folders.v1 == std::vector<std::string>{root.temp / "/sys/fs/cgroup/memory"});
  CHECK(folders.v2 == std::vector<std::string>{root.temp / "/sys/fs/cgroup/a.slice/b.scope",
                                               root.temp / "/sys/fs/cgroup/a.slice",
                                               root.temp / "/sys/fs/cgroup"});
}

TEST_CASE("two hardware threads of a core count once") {
  const Root root;
  const std::vector<int> all = {0, 1, 4, 5, 9};
  CHECK(count_cores(all, root.temp / "") == 5);  // Nothing is known
  const auto write = [&](int processor, const std::string& file, const std::string& siblings) {
    root.write("sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/" + file,
               siblings + "\n");
  };
  write(0, "core_cpus_list", "0,4");
  write(4, "core_cpus_list", "0,4");
  write(1, "thread_siblings_list", "1,5");
  write(5, "thread_siblings_list", "1,5");
  CHECK(count_cores(all, root.temp / "") == 3);
  const std::vector<int> one = {4};  // Its sibling is not this process'
  CHECK(count_cores(one, root.temp / "") == 1);
  CHECK(usable_cores() >= 1);
  CHECK(usable_cores() <= usable_processors());
}

TEST_CASE("last-level caches count once, whoever shares them") {
  const Root root;
  const std::vector<int> all = {0, 1, 4};
  CHECK(last_level_cache_bytes(all, root.temp / "") == 0);  // Nothing is known
  const auto write = [&](int processor, int index, int level, const std::string& size,
                         const std::string& sharing) {
    const std::string folder = "sys/devices/system/cpu/cpu" + std::to_string(processor) +
                               "/cache/index" + std::to_string(index) + "/";
    root.write(folder + "level", std::to_string(level) + "\n");
    root.write(folder + "size", size + "\n");
    root.write(folder + "shared_cpu_list", sharing + "\n");
  };
  for (const int processor : all) {
    write(processor, 0, 1, "48K", std::to_string(processor));
    write(processor, 1, 2, "2048K", std::to_string(processor));
  }
  CHECK(last_level_cache_bytes(all, root.temp / "") == size_t{3} << 21);
  write(0, 2, 3, "32768K", "0-1");
  write(1, 2, 3, "32768K", "0-1");
  write(4, 2, 3, "16384K", "4-7");
  CHECK(last_level_cache_bytes(all, root.temp / "") == size_t{48} << 20);
  const std::vector<int> one = {1};
  CHECK(last_level_cache_bytes(one, root.temp / "") == size_t{32} << 20);
}

TEST_CASE("a thread that is held to one processor counts one") {
  const int before = usable_processors();
  CHECK(before >= 1);
  int on_one = 0;
  std::thread([&] {
    cpu_set_t all, one;
    REQUIRE(sched_getaffinity(0, sizeof(all), &all) == 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (!CPU_ISSET(i, &all)) continue;
      CPU_SET(i, &one);
      break;
    }
    REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
    on_one = usable_processors();
  }).join();
  CHECK(on_one == 1);
  CHECK(usable_processors() == before);
}

}  // namespace
}  // namespace spillway::processors_test
