// The measurements of `spillway profile`. They block; their memory and files are freed when they
// return.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "policy/hardware_profile.h"

namespace spillway {

struct ProfileOptions {
  double seconds = 60;                          // Approximate total duration
  int64_t threads = 0;                          // Host threads, beside a discrete device
  std::vector<std::string> disk_dirs;           // Directories of the spill files
  std::function<bool()> keep_going;             // False: stop with kCancelled
  std::function<void(const std::string&)> say;  // Shows a progress line
};

// Measures everything but the disk. Each figure is the median of several samples, of one where time
// runs short. kCapacity: too little memory is free to measure with.
Status measure_processors(Device& device, const ProfileOptions& options, HardwareProfile* profile);

// Measures the disk, or all disks together: direct reads and writes by size and number of requests,
// at most 40 s of them and about 10 GB written, and of several disks each for a moment. Takes a
// file of up to 1 GiB, at most a quarter of the free bytes; kCapacity when that is too little. An
// error of a request is one of the measurement.
Status measure_disk(Device& device, const ProfileOptions& options, HardwareProfile* profile);

}  // namespace spillway
