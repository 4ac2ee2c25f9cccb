// Turns a stream of token ids into a stream of text that is valid UTF-8 at every moment: a
// character whose bytes are split over several tokens is held back until it is complete.
//
// One per sequence; borrows the tokenizer. Thread rule: one thread. Invariant: the concatenated
// results of push() and finish() are Tokenizer::decode() of all ids, from the same TextPosition.
#pragma once

#include <cstdint>
#include <string>

#include "server/tokenizer/tokenizer.h"

namespace spillway {

class Detokenizer {
 public:
  // `tokenizer` must live longer. skip_special: special tokens give no text.
  Detokenizer(const Tokenizer* tokenizer, bool skip_special,
              TextPosition position = TextPosition::kStart)
      : tokenizer_(tokenizer),
        skip_special_(skip_special),
        position_(position),
        start_(tokenizer->start_of_text(position)) {}

  // Returns the text that is certain now; often empty. Bytes that can never become a character give
  // U+FFFD.
  std::string push(int32_t id);

  // Returns the rest: U+FFFD if a character is incomplete. push() may begin a new text then.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  TextPosition position_;
  StartOfText start_;
  std::string pending_;  // The beginning of a character, 0 to 3 bytes
};

}  // namespace spillway
