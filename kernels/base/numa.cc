#include "kernels/base/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "kernels/base/processors.h"

namespace spillway {

namespace {

constexpr int kNodesMax = 1024;  // MAX_NUMNODES of the largest kernels
constexpr int kWordBits = sizeof(unsigned long) * CHAR_BIT;

// A set of nodes as the kernel takes it. (libnuma has these calls too, and prints what they fail
// with.)
struct NodeMask {
  unsigned long words[kNodesMax / kWordBits] = {};

  void add(int node) {
    if (node < 0 || node >= kNodesMax) return;
    words[node / kWordBits] |= 1ul << (node % kWordBits);
  }
  bool has(int node) const {
    if (node < 0 || node >= kNodesMax) return false;
    return (words[node / kWordBits] >> (node % kWordBits) & 1) != 0;
  }
};

// The nodes that this process may take memory from; empty where the kernel does not tell.
std::optional<NodeMask> allowed_nodes() {
  NodeMask mask;
  if (::syscall(SYS_get_mempolicy, nullptr, mask.words, kNodesMax, nullptr, MPOL_F_MEMS_ALLOWED) !=
      0) {
    return {};
  }
  return mask;
}

bool has_default_policy() {
  int mode = 0;
  return ::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 && mode == MPOL_DEFAULT;
}

// The processors of "0-31,64-95".
std::set<int> processors_of_list(const std::string& list) {
  std::set<int> processors;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    std::istringstream range(part);
    int first = 0, last = 0;
    char dash = 0;
    if (!(range >> first)) continue;
    if (!(range >> dash >> last)) last = first;
    for (int i = first; i <= last; ++i) processors.insert(i);
  }
  return processors;
}

}  // namespace

std::vector<int> nodes_of(std::span<const int> processors, const std::string& root) {
  std::vector<int> nodes;
  std::error_code error;
  const std::filesystem::path folder = root + "/sys/devices/system/node";
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    std::istringstream number(name.starts_with("node") ? name.substr(4) : "");
    int node = 0;
    std::string list;
    if (!(number >> node) || !(std::ifstream(entry.path() / "cpulist") >> list)) continue;
    const std::set<int> of_node = processors_of_list(list);
    if (std::ranges::any_of(processors, [&](int p) { return of_node.contains(p); })) {
      nodes.push_back(node);
    }
  }
  std::ranges::sort(nodes);
  return nodes;
}

std::vector<int> nodes_to_spread_over() {
  if (!has_default_policy()) return {};
  const auto allowed = allowed_nodes();
  if (!allowed) return {};
  const std::vector<int> processors = allowed_processors();
  std::vector<int> nodes = nodes_of(processors);
  std::erase_if(nodes, [&](int node) { return !allowed->has(node); });
  return nodes.size() > 1 ? nodes : std::vector<int>();
}

bool interleave(std::byte* data, size_t bytes, std::span<const int> nodes) {
  NodeMask mask;
  for (const int node : nodes) mask.add(node);
  return ::syscall(SYS_mbind, data, bytes, MPOL_INTERLEAVE, mask.words, kNodesMax, 0) == 0;
}

}  // namespace spillway
