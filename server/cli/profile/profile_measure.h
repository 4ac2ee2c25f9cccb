// The measurements of `spillway profile`. They block; memory and files they take are gone when they
// return.
#pragma once

#include <functional>
#include <string>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "policy/hardware_profile.h"

namespace spillway {

struct ProfileOptions {
  double seconds = 60;               // About how long all of it takes
  int64_t threads = 0;               // Of the host, beside a device with memory of its own
  std::string disk_dir;              // Where spill files would be
  std::function<bool()> keep_going;  // False: stop with kCancelled
  std::function<void(const std::string&)> say;  // A line for people
};

// Everything but the disk. Each figure is the median of several samples, of one where time runs
// short. kCapacity: too little memory is free to measure with.
Status measure_processors(Device& device, const ProfileOptions& options, HardwareProfile* profile);

// The disk: direct reads and writes by size and number of requests, at most 40 s of them and about
// 10 GB written. Takes a file of up to 1 GiB, at most a quarter of what is free; kCapacity when
// that is too little. An error of a request is one of the measurement.
Status measure_disk(Device& device, const ProfileOptions& options, HardwareProfile* profile);

}  // namespace spillway
