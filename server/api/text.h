// Conversion between token ids and an answer's text: the only place of the API that knows the
// tokenizer's classes. Functions: any thread. TextStream: one thread at a time (the engine's).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

class Tokenizer;

// Token ids of a text. `add_special_tokens`: with the model's start-of-text token, if it has one.
// `parse_special`: special tokens written in the text are these tokens; else they stay text. Errors
// as Tokenizer::encode().
Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, std::string_view text,
                                           bool add_special_tokens, bool parse_special);

// Ids that the tokenizer's files name; -1: none.
struct SpecialTokens {
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t pad = -1;
  bool adds_bos = false;  // In front of every text
};
SpecialTokens special_tokens(const Tokenizer& tokenizer);

// Text of complete token ids that begin a text; invalid UTF-8 becomes U+FFFD.
std::string decode_tokens(const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                          bool skip_special_tokens);

// A token's name in `logprobs`: its text, "bytes:\xe2\x80" when that is no valid UTF-8 alone, and
// "token_id:7" when asked for or without a tokenizer.
std::string token_name(const Tokenizer* tokenizer, int32_t token, bool as_id);

// A token's bytes within a text, perhaps a part of a character; empty if there is no such token.
std::vector<uint8_t> token_bytes(const Tokenizer& tokenizer, int32_t token);

// The number of code points of valid UTF-8, in which clients count string indices.
int64_t count_characters(std::string_view text);

// Turns one sequence's tokens into text, which continues a prompt's unless it is said: holds back
// half characters and possible starts of stop strings. Invariant: all released text is valid UTF-8
// and contains no stop string.
class TextStream {
 public:
  TextStream(const Tokenizer* tokenizer, bool skip_special_tokens,
             const std::vector<std::string>& stops, bool include_stop, bool begins_text = false);
  ~TextStream();
  TextStream(TextStream&& other) noexcept;
  TextStream& operator=(TextStream&& other) noexcept;

  struct Step {
    std::string text;            // Text that may be sent now
    int64_t decoded = 0;         // Characters that this token completed, released or not
    std::optional<size_t> stop;  // The stop string (index) that this token completed
  };

  // REQUIRES: no stop string matched before. `may_stop` false: this token's text is not searched
  // (min_tokens is not reached yet).
  Step push(int32_t token, bool may_stop);

  // Returns the held-back text, once no token follows.
  Step finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace spillway
