// The index of a sharded checkpoint (model.safetensors.index.json, pytorch_model.bin.index.json):
// which file holds which tensor. Pure function, any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

constexpr uint64_t kIndexBytesMax = uint64_t{128} << 20;

// Maps each file name to the names of its tensors, both sorted. File names are plain names (no
// separator, no "..") that end in `extension`. Errors name `path`.
Result<std::map<std::string, std::vector<std::string>>> parse_shard_index(
    std::string_view text, std::string_view path, std::string_view extension);

}  // namespace spillway
