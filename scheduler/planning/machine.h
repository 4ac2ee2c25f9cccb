// The parts of the machine that a command opens before anything runs: the device that --device
// names and the folders of scratch files. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "scheduler/planning/engine_flags.h"

namespace spillway {

struct DeviceChoice {
  std::string kind = "auto";  // cpu, cuda; auto: CUDA where there is one, else the CPU
  int64_t gpu = 0;            // Other than 0: must exist
  int64_t threads = 0;        // CPU threads; 0: one per processor
  // How a CPU multiplies with quantised weights: activations in 8 bits (int8), or in float (float);
  // auto: in 8 bits where the CPU can and the weights were made for it (input_hadamard.h).
  std::string quantized_compute = "auto";
};
DeviceChoice device_choice(const EngineFlags& flags);

// The error of --quantized-compute int8 on a device that is not a CPU.
Status int8_is_for_cpus();

// The command that measures the machine as it would run with these flags.
std::string profile_command_text(const EngineFlags& flags);
Result<std::unique_ptr<Device>> open_device(const DeviceChoice& choice);

// `disk_dirs`, or "scratch" in the cache folder when there are none; empty without a cache folder:
// then nothing can live on disk.
std::vector<std::string> scratch_directories(const std::vector<std::string>& disk_dirs);

}  // namespace spillway
