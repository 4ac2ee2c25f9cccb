#include "kernels/base/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "kernels/base/cgroup.h"

namespace spillway {

namespace {

int within_quota(size_t count) {
  auto most = static_cast<int>(count);
  if (const auto quota = cpu_quota()) {
    most = std::min(most, static_cast<int>(std::ceil(std::min(*quota, 1e6))));
  }
  return std::max(1, most);
}

}  // namespace

std::vector<int> allowed_processors() {
  std::vector<int> processors;
  // More than 1,024 processors do not fit the fixed set, and the call reports it.
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) processors.push_back(i);
    }
  } else {
    processors.resize(std::thread::hardware_concurrency());
    std::iota(processors.begin(), processors.end(), 0);
  }
  return processors;
}

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

int count_cores(std::span<const int> processors, const std::string& root) {
  int unknown = 0;
  std::set<std::string> cores;
  for (const int processor : processors) {
    const std::string folder =
        root + "/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/";
    std::string siblings;  // "3,67": the processors of its core; named otherwise before Linux 5.3
    for (const char* name : {"core_cpus_list", "thread_siblings_list"}) {
      std::ifstream file(folder + name);
      if (file >> siblings) break;
    }
    if (siblings.empty()) {
      ++unknown;
    } else {
      cores.insert(siblings);
    }
  }
  return static_cast<int>(cores.size()) + unknown;
}

size_t last_level_cache_bytes(std::span<const int> processors, const std::string& root) {
  std::map<std::string, size_t> caches;  // Bytes by the processors that share it
  for (const int processor : processors) {
    int last = 0;
    std::string sharing;
    size_t bytes = 0;
    for (int index = 0;; ++index) {
      const std::string folder = root + "/sys/devices/system/cpu/cpu" + std::to_string(processor) +
                                 "/cache/index" + std::to_string(index) + "/";
      std::ifstream level_file(folder + "level"), size_file(folder + "size"),
          sharing_file(folder + "shared_cpu_list");
      int level = 0;
      size_t kib = 0;
      char unit = 0;
      std::string processors_list;
      if (!(level_file >> level)) break;
      if (!(size_file >> kib >> unit) || unit != 'K' || !(sharing_file >> processors_list))
        continue;
      if (level < last) continue;
      last = level;
      sharing = processors_list;
      bytes = kib * 1024;
    }
    if (last > 1) caches[sharing] = bytes;
  }
  return std::accumulate(caches.begin(), caches.end(), size_t{0},
                         [](size_t sum, const auto& cache) { return sum + cache.second; });
}

int usable_processors() {
  return within_quota(allowed_processors().size());
}

int usable_cores() {
  return within_quota(static_cast<size_t>(count_cores(allowed_processors())));
}

}  // namespace spillway
