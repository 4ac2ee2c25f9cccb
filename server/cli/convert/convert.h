// `spillway convert`: a checkpoint directory becomes a packed file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/base/status.h"
#include "server/cli/flags/command_line.h"

namespace spillway {

struct ConvertFlags {
  std::string directory;
  std::string output;
  std::string format = "auto";  // auto, f32, bf16, f16, q4, q4_1, q8_1 or q8
  std::string device = "cpu";   // Layout of the matrices: cpu (this machine's) or cuda
  bool no_crc = false;
  bool lenient_header = false;
  int64_t threads = 0;
  std::string calibrate;  // A text file; empty: none
};

// Converts; the summary goes to stdout, progress and warnings to stderr. `keep_going` is called ten
// times a second; false ends with kCancelled and keeps any earlier file at the output. Blocks.
Status run_convert(const ConvertFlags& flags, const std::function<bool()>& keep_going);

Command convert_command();

}  // namespace spillway
