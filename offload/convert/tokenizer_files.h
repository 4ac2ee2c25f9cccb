// The tokenizer files of a model directory or a GGUF file, for embedding in the packed file. Any
// thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

// Names and contents of the existing files among tokenizer.json, vocab.json, merges.txt,
// tokenizer_config.json, special_tokens_map.json and added_tokens.json; without any, the model
// takes token ids. Of a path that ends in .gguf those that its metadata mean (gguf_tokenizer.h).
// Blocks.
Result<std::vector<std::pair<std::string, std::string>>> read_tokenizer_files(
    const std::string& path);

}  // namespace spillway
