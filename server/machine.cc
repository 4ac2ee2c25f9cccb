#include "server/machine.h"

#include <algorithm>

#include "offload/model_source.h"

namespace spillway {

Result<std::unique_ptr<Device>> open_device(const std::string& kind, int64_t gpu, int64_t threads) {
  if (kind != "cpu") {
    auto device = open_cuda_device(static_cast<int>(gpu));
    if (kind == "cuda" || gpu > 0 || device.status().code() != Code::kNotFound) return device;
  }
  return open_cpu_device(static_cast<int>(std::min<int64_t>(threads, 1 << 20)));
}

std::string scratch_directory(const std::string& disk_dir) {
  if (!disk_dir.empty()) return disk_dir;
  const Result<std::string> cache = default_cache_directory();
  return cache.ok() ? cache.value() + "/scratch" : std::string();
}

}  // namespace spillway
