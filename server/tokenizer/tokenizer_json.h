// Reads the parts of tokenizer.json and its neighbours from parsed JSON into checked values. Used
// by read_tokenizer_files() alone; errors name the entry, the caller adds the file. Pure functions,
// any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "server/tokenizer/tokenizer_files.h"
#include "server/tokenizer/vocabulary_parser.h"

namespace spillway {

// Reads a vocabulary {piece: id, ...}, as in vocab.json and tokenizer.json.
Status read_vocabulary(const nlohmann::json& entries, VocabularyParser* vocabulary);

// Reads an entry of added_tokens or added_tokens_decoder, without its id.
Result<AddedToken> read_added_token(const nlohmann::json& entry);

// Reads all of tokenizer.json: vocabulary and merges into `vocabulary`, added tokens and the
// post-processor's setting of bos into `description`. Refuses anything but a byte-level BPE with
// GPT-2's pattern.
Status read_tokenizer_json(const nlohmann::json& file, VocabularyParser* vocabulary,
                           TokenizerDescription* description);

}  // namespace spillway
