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

// Adds it to vocabulary and description. Errors as VocabularyParser::add_piece().
Status add_token(AddedToken token, int64_t id, VocabularyParser* vocabulary,
                 TokenizerDescription* description);

// Reads all of tokenizer.json: vocabulary and merges into `vocabulary`, the rest into
// `description`. Refuses by name what it does not know.
Status read_tokenizer_json(const nlohmann::json& file, VocabularyParser* vocabulary,
                           TokenizerDescription* description);

}  // namespace spillway
