#include "scheduler/planning/machine.h"

#include <algorithm>

#include "offload/model_source.h"
#include "scheduler/planning/disk_dirs.h"

namespace spillway {

DeviceChoice device_choice(const EngineFlags& flags) {
  const bool named = flags.gpus && !flags.gpus->empty();  // Of one alone; ranks have their own.
  return {named ? "cuda" : flags.device, named ? flags.gpus->front() : flags.gpu, flags.threads,
          flags.quantized_compute};
}

Status int8_is_for_cpus() {
  return invalid_argument(
      "--quantized-compute int8 is for the CPU: leave it out, or add --device cpu");
}

std::string profile_command_text(const EngineFlags& flags) {
  const std::string& compute = flags.quantized_compute;
  return std::string("`spillway profile") +
         (compute != "auto" ? " --quantized-compute " + compute : std::string()) +
         // (The disk of one folder is as likely as not the default's.)
         (flags.disk_dirs.size() > 1 ? " --disk-dir " + disk_dirs_text(flags.disk_dirs)
                                     : std::string()) +
         "`";
}

Result<std::unique_ptr<Device>> open_device(const DeviceChoice& choice) {
  const bool int8 = choice.quantized_compute == "int8";
  if (choice.kind != "cpu") {
    auto device = open_cuda_device(static_cast<int>(choice.gpu));
    if (choice.kind == "cuda" || choice.gpu > 0 || device.status().code() != Code::kNotFound) {
      if (!int8 || !device.ok()) return device;
      return int8_is_for_cpus();
    }
  }
  auto device = open_cpu_device(static_cast<int>(std::min<int64_t>(choice.threads, 1 << 20)),
                                int8                                  ? CpuMatmul::kInt8
                                : choice.quantized_compute == "float" ? CpuMatmul::kFloat
                                                                      : CpuMatmul::kFastest);
  if (int8 && !device.ok()) return device.status().at("--quantized-compute int8");
  return device;
}

std::vector<std::string> scratch_directories(const std::vector<std::string>& disk_dirs) {
  if (!disk_dirs.empty()) return disk_dirs;
  const Result<std::string> cache = default_cache_directory();
  if (!cache.ok()) return {};
  return {cache.value() + "/scratch"};
}

}  // namespace spillway
