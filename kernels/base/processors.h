// Number of processors and of cores that this process may keep busy.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace spillway {

// Processors of its affinity mask, by number.
std::vector<int> allowed_processors();

// Processors of its affinity mask (taskset, cpuset), and no more than the CPU quota of its control
// groups (docker --cpus, systemd's CPUQuota), rounded up: more threads would only wait for each
// other while the quota is used up. At least 1.
int usable_processors();

// Of these as many as have a core of their own: two hardware threads of a core share its vector
// units and its caches, so that products of both take as long as of one after the other, and every
// op waits for the slower. At least 1, and no more than the quota.
int usable_cores();

// Distinct cores among processors, by the kernel's topology; one that it does not know counts as a
// core. `root` is prepended to every path, for tests.
int count_cores(std::span<const int> processors, const std::string& root = "");

// Bytes of the distinct last-level caches of processors, by the kernel's topology; 0 where it does
// not say. `root` is prepended to every path, for tests.
size_t last_level_cache_bytes(std::span<const int> processors, const std::string& root = "");

// The smallest quota among this process' control groups, in processors; empty: there is none.
// `root` is prepended to every path, for tests.
std::optional<double> cpu_quota(const std::string& root = "");

}  // namespace spillway
