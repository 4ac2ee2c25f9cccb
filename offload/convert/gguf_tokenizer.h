// The tokenizer inside a GGUF file as the tokenizer.json and tokenizer_config.json that the
// original model has, so that tokenizers have one input. Pure function, any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/gguf_metadata.h"

namespace spillway {

// Names and contents; none when the file has no tokenizer. A tokenizer of a kind that is not
// supported (another model than "gpt2" and "llama", an unknown pre-tokenizer) gives a
// tokenizer.json whose reader refuses it by name, so that prompts of token ids work still.
// kInvalidArgument names file and key: entries that contradict each other, invalid UTF-8, too many.
// `where` names the file.
Result<std::vector<std::pair<std::string, std::string>>> gguf_tokenizer_files(
    const GgufMetadata& metadata, const std::string& where);

}  // namespace spillway
