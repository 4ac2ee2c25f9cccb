// The cache of this machine's hardware profile between runs: a file in the cache folder whose name
// encodes the CPU's model, the number of cores, the device and the disks behind the scratch
// folders, so that machines that share a home directory keep one each. Any thread; blocks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "policy/hardware_profile.h"
#include "scheduler/planning/engine_flags.h"

namespace spillway {

// "2 x Intel(R) Xeon(R) Processor"; a discrete device comes first: "NVIDIA T4, 8 x ...".
std::string machine_name(const Device& device);

// The path of this machine's profile, whether it exists or not. `disk_dirs` need not exist;
// empty: no disk. kNotFound without a cache folder.
Result<std::string> profile_path(const Device& device, const std::vector<std::string>& disk_dirs);

// The profile that `spillway profile` left for this machine; none: it has not run here. An error
// names the file: unreadable, or of an unknown version.
Result<std::optional<HardwareProfile>> cached_profile(const Device& device,
                                                      const std::vector<std::string>& disk_dirs);

// cached_profile() with the memory and disk space that are free now.
Result<std::optional<HardwareProfile>> current_profile(const Device& device,
                                                       const std::vector<std::string>& disk_dirs);

// current_profile() of what one of so many ranks has of the machine that these flags open, which
// the ranks divide (policy/rank_hardware.h). `own`: the rank's device, with its share of the
// threads.
Result<std::optional<HardwareProfile>> rank_profile(const Device& own, int64_t ranks,
                                                    const EngineFlags& flags);

// Stores the text of a profile for cached_profile(); returns the file's path.
Result<std::string> keep_profile(const Device& device, const std::vector<std::string>& disk_dirs,
                                 const std::string& json);

}  // namespace spillway
