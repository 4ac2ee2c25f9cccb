// The cache of this machine's hardware profile between runs: a file in the cache folder whose name
// encodes the CPU's model, the number of cores, the device and the disk behind the scratch folder,
// so that machines that share a home directory keep one each. Any thread; blocks.
#pragma once

#include <optional>
#include <string>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "policy/hardware_profile.h"

namespace spillway {

// "2 x Intel(R) Xeon(R) Processor"; a discrete device comes first: "NVIDIA T4, 8 x ...".
std::string machine_name(const Device& device);

// The path of this machine's profile, whether it exists or not. `disk_dir` need not exist; empty:
// no disk. kNotFound without a cache folder.
Result<std::string> profile_path(const Device& device, const std::string& disk_dir);

// The profile that `spillway profile` left for this machine; none: it has not run here. An error
// names the file: unreadable, or of an unknown version.
Result<std::optional<HardwareProfile>> cached_profile(const Device& device,
                                                      const std::string& disk_dir);

// cached_profile() with the memory and disk space that are free now.
Result<std::optional<HardwareProfile>> current_profile(const Device& device,
                                                       const std::string& disk_dir);

// Stores the text of a profile for cached_profile(); returns the file's path.
Result<std::string> keep_profile(const Device& device, const std::string& disk_dir,
                                 const std::string& json);

}  // namespace spillway
