// The tokenizer of a Hugging Face model directory, checked and as one plain value.
//
// It is read from tokenizer.json (a BPE) or else vocab.json and merges.txt (GPT-2's); in either
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
#include "server/tokenizer/tokenizer_steps.h"

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
  bool normalized = false;   // Matches in normalized text, as its own normalized text.
  bool single_word = false;  // Matches only where no word character is beside it.
};

// How the model turns a piece of text into its first symbols, before any merge.
struct BpeOptions {
  bool bytes = true;           // Of a byte-level alphabet: a symbol a byte. Else a character each.
  bool byte_fallback = false;  // An unknown character is its bytes' tokens, "<0xE2>".
  int32_t unknown = -1;        // The token of an unknown character; -1: none
  bool fuse_unk = false;       // Unknown characters in a row are one token.
  bool ignore_merges = false;  // A piece in the vocabulary is its token, whatever the merges say.
};

// Tokens that are put in front of a text and behind it.
struct TokensAround {
  std::vector<int32_t> before;
  std::vector<int32_t> behind;
};

struct TokenizerDescription {
  std::vector<std::string> pieces;     // By id, as in the file
  std::vector<Merge> merges;           // By rank, no pair twice
  std::vector<AddedToken> added;       // By id
  std::vector<int32_t> outside_model;  // Added tokens that the model's vocabulary lacks
  BpeOptions bpe;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<DecoderStep> decoder;
  int32_t bos = -1;  // -1: the files name none
  int32_t eos = -1;
  int32_t pad = -1;
  // What tokenizer.json, or a class that overrides it, puts around a text; empty: there is none.
  std::optional<TokensAround> around;
  std::optional<bool> add_bos;  // Without `around`: whether bos is in front; empty: unspecified
};

// kNotFound: neither tokenizer.json nor vocab.json and merges.txt are among the files.
// kInvalidArgument, naming file and entry: anything that is not a complete BPE (ids with gaps,
// twice, negative or too many; merges of unknown pieces; bad UTF-8; another kind of model), and
// steps around it that are not known.
Result<TokenizerDescription> read_tokenizer_files(std::span<const NamedFile> files);

}  // namespace spillway
