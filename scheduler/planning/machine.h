// What commands ask of the machine before anything runs: the device that --device names and the
// folder of scratch files. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "scheduler/planning/engine_flags.h"

namespace spillway {

struct DeviceChoice {
  std::string kind = "auto";        // cpu, cuda; auto: CUDA where there is one, else the CPU
  int64_t gpu = 0;                  // Other than 0: must be there
  int64_t threads = 0;              // Of the CPU; 0: one a processor
  std::string q4_compute = "auto";  // int8: of the CPU (CpuMatmul::kInt8)
};
DeviceChoice device_choice(const EngineFlags& flags);

// What --q4-compute int8 ends with on a device that is no CPU.
Status int8_is_for_cpus();

// The command that measures the machine as it would run with these flags.
std::string profile_command_text(const EngineFlags& flags);
Result<std::unique_ptr<Device>> open_device(const DeviceChoice& choice);

// `disk_dir`, or "scratch" in the cache folder when it is empty; empty where there is no home for
// it: then nothing can go to disk.
std::string scratch_directory(const std::string& disk_dir);

}  // namespace spillway
