// Number of processors that this process may keep busy.
#pragma once

#include <optional>
#include <string>

namespace spillway {

// Processors of its affinity mask (taskset, cpuset), and no more than the CPU quota of its control
// groups (docker --cpus, systemd's CPUQuota), rounded up: more threads would only wait for each
// other while the quota is used up. At least 1.
int usable_processors();

// The smallest quota among this process' control groups, in processors; empty: there is none.
// `root` is prepended to every path, for tests.
std::optional<double> cpu_quota(const std::string& root = "");

}  // namespace spillway
