// The text of tokens, as the decoder of tokenizer.json says: the bytes of each token, and what is
// taken away where a text begins.
//
// `tokenizers` decodes a list of tokens at once; here every token has bytes of its own, so that
// text can be streamed, and only the start of a text is special. The one difference: where byte
// tokens ("<0xE4>") are no whole character, U+FFFD stands for the ill-formed sequence (utf8.h), not
// for each byte of all the byte tokens in a row.
//
// Owned by a Tokenizer. Thread rule: const after create(), any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/tokenizer/text_pattern.h"
#include "server/tokenizer/tokenizer_steps.h"

namespace spillway {

// What is taken away at the start of a text: up to `count` characters `character`; of the first
// token, if `first_token`, all of them wherever they are.
struct StartRule {
  char character = ' ';
  int32_t count = 0;
  bool first_token = false;
  bool empty() const { return count == 0 && !first_token; }
};

// The tokens of one text, one after the other. One thread.
class StartOfText {
 public:
  // `done`: the text goes on with another, nothing is taken away.
  StartOfText(const StartRule& rule, bool done);

  // Appends what is left of a token's bytes. `added`: an added token, whose own spaces stay.
  void append(std::string_view bytes, bool added, std::string* text);

 private:
  StartRule rule_;
  bool done_;
};

class TokenDecoder {
 public:
  // kInvalidArgument: steps in an order that no single token's text follows from.
  static Result<TokenDecoder> create(const std::vector<DecoderStep>& steps);

  // The bytes of a token of the vocabulary; empty only if a step leaves nothing. An added token's
  // text is not in the byte-level alphabet. kCapacity: a limit of a pattern.
  Result<std::string> bytes_of(const std::string& piece, bool added) const;

  const StartRule& start_rule() const { return start_rule_; }

 private:
  TokenDecoder() = default;
  Status add_step(const DecoderStep& step);
  Result<std::string> apply(const DecoderStep& step, const TextPattern* pattern, std::string text,
                            bool added) const;

  std::vector<DecoderStep> steps_;  // Of single tokens
  std::vector<std::optional<TextPattern>> patterns_;
  bool fused_ = false;  // Steps from here on see the whole text.
  StartRule start_rule_;
};

}  // namespace spillway
