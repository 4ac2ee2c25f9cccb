// What commands ask of the machine before anything runs: the device that --device names and the
// folder of scratch files. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/status.h"
#include "kernels/device.h"

namespace spillway {

// `kind` auto|cpu|cuda: auto is CUDA device number `gpu` where there is one, else the CPU; a `gpu`
// other than 0 must be there. `threads` of the CPU; 0: one a core.
Result<std::unique_ptr<Device>> open_device(const std::string& kind, int64_t gpu, int64_t threads);

// `disk_dir`, or "scratch" in the cache folder when it is empty; empty where there is no home for
// it: then nothing can go to disk.
std::string scratch_directory(const std::string& disk_dir);

}  // namespace spillway
