#include "kernels/base/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

#include "kernels/base/cgroup.h"

namespace spillway {

namespace {

int processors_of_mask() {
  // More than 1,024 processors do not fit the fixed set, and the call reports it.
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> least;
  const auto consider = [&](double quota, double period) {
    if (quota > 0 && period > 0) least = std::min(least.value_or(quota / period), quota / period);
  };
  const CgroupFolders folders = cgroup_folders("cpu", root);
  for (const std::string& folder : folders.v2) {
    std::ifstream file(folder + "/cpu.max");  // "150000 100000" microseconds, or "max 100000"
    double quota = 0, period = 0;
    if (file >> quota >> period) consider(quota, period);
  }
  for (const std::string& folder : folders.v1) {
    std::ifstream quota_file(folder + "/cpu.cfs_quota_us");  // -1: none
    std::ifstream period_file(folder + "/cpu.cfs_period_us");
    double quota = 0, period = 0;
    if (quota_file >> quota && period_file >> period) consider(quota, period);
  }
  return least;
}

int usable_processors() {
  int processors = processors_of_mask();
  if (const auto quota = cpu_quota()) {
    processors = std::min(processors, static_cast<int>(std::ceil(std::min(*quota, 1e6))));
  }
  return std::max(1, processors);
}

}  // namespace spillway
