// One sequence's output as text: collects tokens, scores and released text into pieces. Belongs to
// one thread at a time (the engine's, while its sequence runs).
#pragma once

#include <cstdint>
#include <span>

#include "server/api/completion.h"
#include "server/api/completion_run.h"
#include "server/api/text.h"

namespace spillway {

class SequenceText {
 public:
  // `call` outlives it. With echo the prompt's text is the start of the first piece.
  SequenceText(const Tokenizer* tokenizer, const CompletionCall& call, int32_t index);

  // One entry a prompt token, the first unscored.
  void add_prompt_scores(std::span<const TokenLogprobs> logprobs);

  // False: a stop string was found, the sequence ends.
  bool add_token(int32_t token, const TokenLogprobs* logprobs);

  // Whether it has as many tokens as were asked for: its finish follows at once.
  bool complete() const { return generated_tokens_ >= request().max_tokens; }

  // The stop token that ends the choice counts and is scored like any other; it has no text.
  void add_stop_token(int32_t token, const TokenLogprobs* logprobs);

  // Ends the choice. `stop_token` as in Finish.
  void finish(FinishReason reason, std::optional<int32_t> stop_token);

  // Whether a piece should be sent: it has text, or tokens of a model without text, of as many
  // tokens as the call wants in a piece (the first alone), or is the last one.
  bool ready() const;

  // Returns everything collected since the last take().
  ChoiceText take();

  int64_t generated_tokens() const { return generated_tokens_; }

 private:
  const Request& request() const { return call_->requests[static_cast<size_t>(piece_.index)]; }
  // Tokens that an echo leaves out: the start-of-text token, which no client's text has. (Special
  // tokens that a prompt was written with are a part of it.)
  size_t unechoed() const;
  void add_score(int32_t token, int64_t offset, const TokenLogprobs* logprobs);

  const Tokenizer* tokenizer_;
  const CompletionCall* call_;
  TextStream stream_;
  ChoiceText piece_;
  int64_t characters_ = 0;  // Decoded so far, prompt included when echoed
  int64_t generated_tokens_ = 0;
  std::optional<size_t> stop_;
};

}  // namespace spillway
