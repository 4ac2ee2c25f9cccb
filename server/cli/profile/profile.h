// `spillway profile`: measures this machine's capacities and rates, for the cost model. Prints a
// table or, with --json, the profile itself, and keeps it for `plan`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/base/status.h"
#include "policy/hardware_profile.h"
#include "server/cli/flags/command_line.h"

namespace spillway {

struct ProfileFlags {
  std::string output;  // A file; empty: none
  bool json = false;
  int64_t seconds = 60;  // Approximate duration of the measurement
  std::string device = "auto";
  int64_t gpu = 0;
  int64_t threads = 0;  // 0: one per core
  std::string quantized_compute = "auto";
  std::vector<std::string> disk_dirs;
};

// Prints on stdout, progress on stderr. `keep_going` is called between measurements; false ends
// with kCancelled and leaves no files behind. Blocks.
Status run_profile(const ProfileFlags& flags, const std::function<bool()>& keep_going);

// A profile as a table: every figure with its spread, or its source.
std::string profile_table(const HardwareProfile& profile);

Command profile_command();

}  // namespace spillway
