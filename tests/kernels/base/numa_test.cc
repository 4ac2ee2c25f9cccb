// Memory nodes from a made-up /sys, and the kernel's own word on where pages will lie.
#include "kernels/base/numa.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "kernels/base/processors.h"
#include "tests/support/temp_directory.h"

namespace spillway::numa_test {
namespace {

using Nodes = std::vector<int>;

TEST_CASE("the nodes of processors are those that list them") {
  const TempDirectory temp;
  CHECK(nodes_of(Nodes{0, 1}, temp / "").empty());  // A kernel without nodes
  const auto write = [&](const std::string& node, const std::string& list) {
    const std::filesystem::path folder = temp / ("sys/devices/system/node/" + node);
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "cpulist") << list << '\n';
  };
  write("node0", "0-3,8-11");
  write("node1", "4-7,12-15");
  write("node10", "16");
  write("node2", "");  // Memory without processors
  write("power", "0-15");
  CHECK(nodes_of(Nodes{0, 9}, temp / "") == Nodes{0});
  CHECK(nodes_of(Nodes{12}, temp / "") == Nodes{1});
  CHECK(nodes_of(Nodes{3, 4}, temp / "") == Nodes{0, 1});
  CHECK(nodes_of(Nodes{16, 7}, temp / "") == Nodes{1, 10});
  CHECK(nodes_of(Nodes{17}, temp / "").empty());
  CHECK(nodes_of({}, temp / "").empty());
}

TEST_CASE("memory is spread only over several nodes that have our processors") {
  const Nodes nodes = nodes_to_spread_over();
  CHECK(nodes.size() != 1);
  const Nodes ours = nodes_of(allowed_processors());
  CHECK(std::ranges::includes(ours, nodes));
}

TEST_CASE("pages of interleaved memory are taken from the nodes in turn") {
  constexpr size_t kBytes = size_t{1} << 20;
  void* const data =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(data != MAP_FAILED);
  unsigned long allowed[16] = {};
  constexpr int kBits = sizeof(allowed) * 8;
  if (::syscall(SYS_get_mempolicy, nullptr, allowed, kBits, nullptr, MPOL_F_MEMS_ALLOWED) != 0) {
    WARN("the kernel does not tell of memory nodes");
    munmap(data, kBytes);
    return;
  }
  Nodes nodes;
  for (int i = 0; i < kBits; ++i) {
    if ((allowed[i / 64] >> (i % 64) & 1) != 0) nodes.push_back(i);
  }
  if (!interleave(static_cast<std::byte*>(data), kBytes, nodes)) {
    CHECK(errno == EPERM);
    WARN("this container may not choose where memory lies");
    munmap(data, kBytes);
    return;
  }
  int mode = 0;
  unsigned long mask[16] = {};
  REQUIRE(::syscall(SYS_get_mempolicy, &mode, mask, kBits, data, MPOL_F_ADDR) == 0);
  CHECK(mode == MPOL_INTERLEAVE);
  CHECK(std::equal(mask, mask + 16, allowed));
  CHECK_FALSE(interleave(static_cast<std::byte*>(data), kBytes, Nodes{}));
  CHECK_FALSE(interleave(static_cast<std::byte*>(data), kBytes, Nodes{1023}));
  munmap(data, kBytes);
}

}  // namespace
}  // namespace spillway::numa_test
