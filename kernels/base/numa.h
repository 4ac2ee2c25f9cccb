// Memory of machines with several memory nodes (NUMA: a node's processors reach its own memory
// faster than that of the others, and all nodes together give more than one).
//
// Linux puts a page on the node of the thread that touches it first. Weights would then lie on the
// nodes of the few threads that read them from disk, and a KV cache on that of whoever prepared it,
// while threads of all nodes read them: one node's memory would be the limit of all. Pages that go
// round the nodes in turn (numactl --interleave) give all nodes' bandwidth to everyone.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace spillway {

// The nodes that `processors` belong to, ascending; empty where the kernel does not tell. `root` is
// prepended to every path, for tests.
std::vector<int> nodes_of(std::span<const int> processors, const std::string& root = "");

// The nodes to spread memory over: those of this process' processors which its cpuset lets it take
// memory from. Empty: there is nothing to spread, since it is one node, or because whoever started
// the process chose where its memory lies (numactl, set_mempolicy(2)).
std::vector<int> nodes_to_spread_over();

// Has the pages of a mapping that nothing has touched yet taken from `nodes` in turn. False where
// the kernel forbids it, as in containers without CAP_SYS_NICE: pages then lie as Linux puts them.
// REQUIRES: `data` is the begin of a page.
bool interleave(std::byte* data, size_t bytes, std::span<const int> nodes);

}  // namespace spillway
