// The tokenizer files of a model directory, for embedding in the packed file. Any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

// Names and contents of the existing files among tokenizer.json, vocab.json, merges.txt,
// tokenizer_config.json, special_tokens_map.json and added_tokens.json; without any, the model
// takes token ids. Blocks.
Result<std::vector<std::pair<std::string, std::string>>> read_tokenizer_files(
    const std::string& directory);

}  // namespace spillway
