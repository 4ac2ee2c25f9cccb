// A text that a flag of a command names.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/status.h"

namespace spillway {

// Reads the whole file. `flag` names it in errors: kNotFound where it cannot be opened,
// kInvalidArgument where it is empty or has more than `bytes_max`.
Result<std::string> read_text_file(const std::string& flag, const std::string& path,
                                   uint64_t bytes_max);

}  // namespace spillway
