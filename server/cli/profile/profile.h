// `spillway profile`: measures what this machine can do, for the cost model. Prints a table or,
// with --json, the profile itself, and keeps it for `plan`.
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
  int64_t seconds = 60;  // About how long to measure
  std::string device = "auto";
  int64_t gpu = 0;
  int64_t threads = 0;  // 0: one a processor
  std::string q4_compute = "auto";
  std::string disk_dir;
};

// Prints on stdout, progress on stderr. `keep_going` is asked between measurements; false ends with
// kCancelled and leaves nothing behind. Blocks.
Status run_profile(const ProfileFlags& flags, const std::function<bool()>& keep_going);

// A profile for people: every figure with its spread, or its source.
std::string profile_table(const HardwareProfile& profile);

Command profile_command();

}  // namespace spillway
