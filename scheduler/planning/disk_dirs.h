// The value of --disk-dir: the folders over which scratch files are striped. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

constexpr size_t kDiskDirsMax = 16;

// The folders that a list names, such as "A,B". In a name "\," is a comma and "\\" a backslash.
// kInvalidArgument: an empty name, one that occurs twice, or more than kDiskDirsMax.
Result<std::vector<std::string>> parse_disk_dirs(const std::string& list);

// The list that names these folders.
std::string disk_dirs_text(const std::vector<std::string>& folders);

}  // namespace spillway
