// `spillway inspect`: describes a model and its size, and checks its files.
#pragma once

#include <functional>
#include <string>

#include "kernels/base/status.h"
#include "server/cli/flags/command_line.h"

namespace spillway {

struct InspectFlags {
  std::string model;
  bool verify = false;
  bool json = false;
  bool lenient_header = false;
};

// Prints the report on stdout, progress on stderr. `keep_going` as in run_convert(). Blocks.
Status run_inspect(const InspectFlags& flags, const std::function<bool()>& keep_going);

Command inspect_command();

}  // namespace spillway
