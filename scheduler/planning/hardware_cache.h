// Where this machine's hardware profile is kept between runs: a file in the cache folder whose name
// tells the CPU's model, the number of cores, the device and the disk behind the scratch folder
// apart, so that machines that share a home directory keep one each. Any thread; blocks.
#pragma once

#include <optional>
#include <string>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "policy/hardware_profile.h"

namespace spillway {

// "2 x Intel(R) Xeon(R) Processor"; with a device of its own, that first: "NVIDIA T4, 8 x ...".
std::string machine_name(const Device& device);

// The file of this machine's profile, there or not. `disk_dir` need not exist; empty: no disk.
// kNotFound where there is no home for a cache.
Result<std::string> profile_path(const Device& device, const std::string& disk_dir);

// The profile that `spillway profile` left for this machine; none: it has not run here. An error
// names the file: unreadable, or of a version that this program does not know.
Result<std::optional<HardwareProfile>> cached_profile(const Device& device,
                                                      const std::string& disk_dir);

// The same with what is free in memory and on disk now.
Result<std::optional<HardwareProfile>> current_profile(const Device& device,
                                                       const std::string& disk_dir);

// Keeps the text of a profile for cached_profile(); the file's path.
Result<std::string> keep_profile(const Device& device, const std::string& disk_dir,
                                 const std::string& json);

}  // namespace spillway
