// Text to token ids and back: a BPE tokenizer as tokenizer.json describes it, byte-level or not,
// with its special tokens.
//
// Owned by the server, shared by all users of text. Thread rule: const after load(), any thread, no
// locks, no caches. Ids are int32_t in [0, vocabulary()); a model may have more rows than that,
// whose ids have no text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "server/tokenizer/added_tokens.h"
#include "server/tokenizer/bpe_model.h"
#include "server/tokenizer/normalizer.h"
#include "server/tokenizer/pretokenizer.h"
#include "server/tokenizer/token_decoder.h"
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
  // Puts the tokens around the text that the files ask for: bos in front, eos behind, mostly none.
  bool add_bos = true;
  bool parse_special = false;  // Special tokens written in the text become their ids.
};

// Where tokens stand that are decoded. Some tokenizers put a space in front of a text, which they
// take away again at its start, but not where generated tokens continue a prompt.
enum class TextPosition : uint8_t { kStart, kContinuation };

class Tokenizer {
 public:
  // `files` as in read_tokenizer_files(). kNotFound: no tokenizer among them. kInvalidArgument:
  // they are not a complete BPE with steps that are known, or a default names an id that they lack.
  static Result<Tokenizer> load(std::span<const NamedFile> files,
                                const TokenizerDefaults& defaults);

  // The ids of `text`, of any content; ill-formed UTF-8 counts as U+FFFD (utf8.h). Added tokens
  // that are not special are always recognised. O(n log n). kCapacity: a limit of the tokenizer's
  // patterns is reached, see text_pattern.h; with GPT-2's pattern that cannot happen.
  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options) const;

  // The text of `ids`, always valid UTF-8. Ids without a token give no text.
  std::string decode(std::span<const int32_t> ids, bool skip_special,
                     TextPosition position = TextPosition::kStart) const;

  // The raw bytes of a token within a text, perhaps only part of a character; empty if there is no
  // such token.
  std::string_view token_bytes(int32_t id) const;

  // Decoding token by token, for Detokenizer: the state in front of the first, and what the next
  // one adds to `bytes`.
  StartOfText start_of_text(TextPosition position) const;
  void append_bytes(int32_t id, bool skip_special, StartOfText* start, std::string* bytes) const;

  bool is_special(int32_t id) const;
  size_t vocabulary() const { return bytes_.size(); }
  int32_t bos() const { return bos_; }  // -1: none; so eos() and pad()
  int32_t eos() const { return eos_; }
  int32_t pad() const { return pad_; }
  // Whether text is encoded with bos in front by default.
  bool adds_bos() const {
    return bos_ >= 0 && !around_.before.empty() && around_.before[0] == bos_;
  }

 private:
  Tokenizer(BpeModel model, Normalizer normalizer, PreTokenizer pre_tokenizer)
      : model_(std::move(model)),
        normalizer_(std::move(normalizer)),
        pre_tokenizer_(std::move(pre_tokenizer)) {}
  Status set_bytes(const TokenizerDescription& files);
  void set_special(TokenizerDescription* files, const TokenizerDefaults& defaults);
  Status set_finders(std::vector<AddedToken> added);
  // Encodes text without tokens of plain_finder_. `starts`: it begins where the whole text does.
  Status encode_text(std::string_view text, bool starts, const EncodeOptions& options,
                     BpeScratch* scratch, std::vector<int32_t>* ids) const;
  Status encode_pieces(std::string text, bool starts, BpeScratch* scratch,
                       std::vector<int32_t>* ids) const;

  BpeModel model_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  AddedTokenFinder plain_finder_{{}};       // Those that are searched in the text as it is
  AddedTokenFinder normalized_finder_{{}};  // Those that are searched in normalized text
  std::vector<std::string> bytes_;          // By id
  std::vector<bool> special_;               // By id
  std::vector<bool> is_added_;              // By id
  StartRule start_rule_;
  TokensAround around_;
  int32_t bos_ = -1;
  int32_t eos_ = -1;
  int32_t pad_ = -1;
};

}  // namespace spillway
