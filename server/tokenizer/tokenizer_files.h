// The tokenizer of a Hugging Face model directory, checked and as one plain value.
//
// It is read from tokenizer.json (a byte-level BPE) or else vocab.json and merges.txt; in either
// case also from tokenizer_config.json and special_tokens_map.json, which name the special tokens.
// Plain values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

constexpr size_t kTokenizerFileBytesMax = size_t{64} << 20;
constexpr size_t kVocabularyMax = size_t{1} << 20;  // Ids, and merges.
constexpr size_t kPieceBytesMax = 4096;             // As written in the file.
constexpr size_t kAddedTokensMax = 4096;

// The names of the files that are read; others are ignored.
constexpr const char* kTokenizerFileNames[] = {
    "tokenizer.json",          "vocab.json",         "merges.txt", "tokenizer_config.json",
    "special_tokens_map.json", "chat_template.jinja"};

// A file's name and its contents.
using NamedFile = std::pair<std::string, std::string>;

// The merge of rank r, the r-th in the file: `left` and `right` next to each other become `merged`.
struct Merge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t merged = 0;
};

// A token outside BPE. Its text is plain UTF-8, not in the byte-level alphabet.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = true;       // Left out by skip_special; matched in text only on request.
  bool strip_left = false;   // Matches with the whitespace in front of it.
  bool strip_right = false;  // Matches with the whitespace behind it.
};

struct TokenizerDescription {
  std::vector<std::string> pieces;  // By id, in the byte-level alphabet; added tokens: text
  std::vector<Merge> merges;        // By rank, no pair twice
  std::vector<AddedToken> added;    // By id
  int32_t bos = -1;                 // -1: the files name none
  int32_t eos = -1;
  int32_t pad = -1;
  std::optional<bool> add_bos;  // Whether text is encoded with bos in front; empty: unspecified
};

// kNotFound: neither tokenizer.json nor vocab.json and merges.txt are among the files.
// kInvalidArgument, naming file and entry: anything that is not a complete byte-level BPE (ids with
// gaps, twice, negative or too many; merges of unknown pieces; bad UTF-8; another kind of model).
Result<TokenizerDescription> read_tokenizer_files(std::span<const NamedFile> files);

}  // namespace spillway
