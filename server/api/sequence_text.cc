#include "server/api/sequence_text.h"

#include <algorithm>

namespace spillway {
namespace {

// Leaves `count` of the likeliest; the engine was asked for those of the field that wants most.
void cut(TokenScore& score, int32_t count) {
  auto& best = score.logprobs.best;
  if (best.size() > static_cast<size_t>(count)) best.resize(static_cast<size_t>(count));
}

}  // namespace

SequenceText::SequenceText(const Tokenizer* tokenizer, const CompletionCall& call, int32_t index)
    : tokenizer_(tokenizer),
      call_(&call),
      stream_(tokenizer, call.skip_special_tokens, call.stop, call.include_stop) {
  piece_.index = index;
  piece_.first = true;
  if (!call.echo || tokenizer == nullptr) return;
  piece_.text = decode_tokens(*tokenizer, std::span(request().prompt).subspan(unechoed()), false);
  characters_ = count_characters(piece_.text);
}

void SequenceText::add_prompt_scores(std::span<const TokenLogprobs> logprobs) {
  if (call_->prompt_logprobs >= 0) {
    for (size_t i = 0; i < std::min(request().prompt.size(), logprobs.size()); ++i) {
      piece_.prompt_scores.push_back({request().prompt[i], 0, i > 0, logprobs[i]});
      cut(piece_.prompt_scores.back(), call_->prompt_logprobs);
    }
  }
  if (!call_->echo || call_->logprobs < 0) return;
  // A second stream finds the offset of each prompt token's text in the echo.
  TextStream echo(tokenizer_, false, {}, false, /*begins_text=*/true);
  const std::vector<int32_t>& prompt = request().prompt;
  const size_t left_out = unechoed();
  int64_t offset = 0;
  for (size_t i = 0; i < std::min(prompt.size(), logprobs.size()); ++i) {
    add_score(prompt[i], offset, &logprobs[i]);
    piece_.scores.back().scored = i > 0;
    cut(piece_.scores.back(), call_->logprobs);
    if (i >= left_out) offset += echo.push(prompt[i], false).decoded;
  }
}

size_t SequenceText::unechoed() const {
  const std::vector<int32_t>& prompt = request().prompt;
  const bool begins =
      tokenizer_ != nullptr && !prompt.empty() && prompt[0] == special_tokens(*tokenizer_).bos;
  return begins && call_->skip_special_tokens ? 1 : 0;
}

bool SequenceText::add_token(int32_t token, const TokenLogprobs* logprobs) {
  add_stop_token(token, logprobs);
  TextStream::Step step = stream_.push(token, generated_tokens_ > request().min_tokens);
  piece_.text += step.text;
  characters_ += step.decoded;
  stop_ = step.stop;
  return !stop_.has_value();
}

void SequenceText::add_stop_token(int32_t token, const TokenLogprobs* logprobs) {
  if (call_->logprobs >= 0) add_score(token, characters_, logprobs);
  piece_.tokens.push_back(token);
  ++generated_tokens_;
}

void SequenceText::finish(FinishReason reason, std::optional<int32_t> stop_token) {
  piece_.finished = true;
  piece_.hit_length = reason == FinishReason::kLength && !stop_;
  if (stop_) {
    piece_.stop_string = call_->stop[*stop_];
    return;  // Held-back text lies behind the stop string.
  }
  piece_.text += stream_.finish().text;
  const auto& named = request().stop_tokens;
  if (stop_token && std::find(named.begin(), named.end(), *stop_token) != named.end()) {
    piece_.stop_token = stop_token;
  }
}

bool SequenceText::ready() const {
  if (piece_.finished) return true;
  const bool enough = piece_.first || !call_->stream ||
                      static_cast<int64_t>(piece_.tokens.size()) >= call_->stream_interval;
  return enough && (!piece_.text.empty() || (tokenizer_ == nullptr && !piece_.tokens.empty()));
}

ChoiceText SequenceText::take() {
  ChoiceText taken = std::move(piece_);
  piece_ = {};
  piece_.index = taken.index;
  return taken;
}

void SequenceText::add_score(int32_t token, int64_t offset, const TokenLogprobs* logprobs) {
  TokenScore score;
  score.token = token;
  score.text_offset = offset;
  if (logprobs != nullptr) score.logprobs = *logprobs;
  piece_.scores.push_back(std::move(score));
}

}  // namespace spillway
