// Text to token ids and back: a byte-level BPE tokenizer with its special tokens.
//
// Owned by the server, shared by all users of text. Thread rule: const after load(), any thread, no
// locks, no caches. Ids are int32_t in [0, vocabulary()); a model may have more rows than that,
// whose ids have no text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/tokenizer/bpe_model.h"
#include "server/tokenizer/tokenizer_files.h"

namespace spillway {

// Defaults for values that the files lack, from the ModelShape and the model family.
struct TokenizerDefaults {
  int32_t bos = -1;  // -1: none
  int32_t eos = -1;
  int32_t pad = -1;
  bool add_bos = true;  // OPT puts its </s> in front.
};

struct EncodeOptions {
  bool add_bos = true;         // Puts bos() in front, if there is one.
  bool parse_special = false;  // Special tokens written in the text become their ids.
};

class Tokenizer {
 public:
  // `files` as in read_tokenizer_files(). kNotFound: no tokenizer among them. kInvalidArgument:
  // they are not a complete byte-level BPE, or a default names an id that they lack.
  static Result<Tokenizer> load(std::span<const NamedFile> files,
                                const TokenizerDefaults& defaults);

  // The ids of `text`, of any length and content; ill-formed UTF-8 counts as U+FFFD (utf8.h). Added
  // tokens that are not special are always recognised. O(n log n).
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const;

  // The text of `ids`, always valid UTF-8. Ids without a token give no text.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // The raw bytes of a token, perhaps only part of a character; empty if there is no such token.
  std::string_view token_bytes(int32_t id) const;

  bool is_special(int32_t id) const;
  size_t vocabulary() const { return bytes_.size(); }
  int32_t bos() const { return bos_; }  // -1: none; so eos() and pad()
  int32_t eos() const { return eos_; }
  int32_t pad() const { return pad_; }
  // Whether text is encoded with bos in front by default.
  bool adds_bos() const { return add_bos_ && bos_ >= 0; }

 private:
  explicit Tokenizer(BpeModel model) : model_(std::move(model)) {}
  struct Found {
    size_t begin;
    size_t end;
    const AddedToken* token;
  };
  // The first added token in `text` at or behind `begin`; of several the longest.
  std::optional<Found> find_added(std::string_view text, size_t begin, bool special) const;
  void encode_plain(std::string_view text, BpeScratch* scratch, std::vector<int32_t>* ids) const;
  void set_special(TokenizerDescription files, const TokenizerDefaults& defaults);

  BpeModel model_;
  std::vector<std::string> bytes_;  // By id
  std::vector<bool> special_;       // By id
  std::vector<AddedToken> added_;  // By text, descending: of two that match the longer comes first.
  bool any_plain_added_ = false;   // One of them is not special.
  int32_t bos_ = -1;
  int32_t eos_ = -1;
  int32_t pad_ = -1;
  bool add_bos_ = false;
};

}  // namespace spillway
