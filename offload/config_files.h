// Files that come with the program: configs/models (shapes), configs/hardware (profiles). Any
// thread; blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

// Where configs/ is looked for, best first: $SPILLWAY_CONFIGS, the source tree of a binary in
// build/PRESET, the installed share/spillway/configs, the tree this was built from.
std::vector<std::string> config_directories();

struct ConfigFile {
  std::string path, text;
};

// FOLDER/NAME.json of the first directory that has it. kNotFound, in words about `what` ("model
// shape"), lists the names there are; a name that is not lower-case letters, digits, '-', '.' and
// '_' is never one.
Result<ConfigFile> read_config_file(std::string_view folder, const std::string& name,
                                    std::string_view what, uint64_t bytes_max);

}  // namespace spillway
