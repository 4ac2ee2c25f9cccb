#include "scheduler/sequence.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "kernels/base/check.h"

namespace spillway {

Sequence::Sequence(RequestId id, Request request, std::shared_ptr<TokenSink> sink,
                   const ModelShape& shape, const SequenceKv& promise, int64_t sampling_vocabulary,
                   double submitted)
    : id_(id),
      request_(std::move(request)),
      kv_promise_(promise),
      sink_(std::move(sink)),
      sampler_(request_.sampling, request_.prompt, request_.max_tokens),
      end_tokens_(request_.stop_tokens),
      positions_(shape.positions),
      sampling_vocabulary_(static_cast<size_t>(sampling_vocabulary > 0
                                                   ? std::min(sampling_vocabulary, shape.vocabulary)
                                                   : shape.vocabulary)),
      submitted_(submitted) {
  if (!request_.ignore_eos) {
    end_tokens_.insert(end_tokens_.end(), shape.eos_tokens.begin(), shape.eos_tokens.end());
  }
}

void Sequence::admit(std::unique_ptr<KvSequence> kv, PrefixCache::Use prefix, int64_t cached,
                     uint64_t number, double now) {
  admission_ = number;
  kv_ = std::move(kv);
  prefix_ = std::move(prefix);
  cached_ = found_cached_ = cached;
  admitted_ = now;
  if (request_.prompt_logprobs >= 0) {
    prompt_logprobs_.reserve(request_.prompt.size());
    prompt_logprobs_.push_back({});  // The first token has no distribution.
  }
  if (draft_tokens_ > 0) {
    drafter_.emplace(request_.prompt, draft_tokens_, request_.max_tokens);
    step_.reserve(static_cast<size_t>(draft_tokens_) + 1);
    rules_.reserve(static_cast<size_t>(draft_tokens_) + 1);
  }
  sink_->on_admitted();
  tell_progress();
}

std::span<const int32_t> Sequence::next_tokens() const {
  if (!prefilling_ && step_.empty()) return {&last_token_, 1};
  if (!prefilling_) return step_;
  const std::span<const int32_t> prompt = request_.prompt;
  return in_chunks() ? prompt.subspan(static_cast<size_t>(cached_), static_cast<size_t>(chunk_))
                     : prompt;
}

int64_t Sequence::next_position() const {
  return prefilling_ ? cached_ : prompt_tokens() + generated_ - 1;
}

void Sequence::draft(int64_t most) {
  if (!drafter_ || prefilling_ || finished()) return;
  most = std::min(most, request_.max_tokens - generated_ - 1);
  if (kv_ != nullptr) most = std::min(most, kv_->positions() - next_position() - 1);
  step_.assign(1, last_token_);
  drafter_->draft(std::min(most, draft_tokens_), &step_);
  if (step_.size() == 1) return step_.clear();
  for (size_t i = 0; i < step_.size(); ++i) {
    rules_.push_back(sample_rule(static_cast<int64_t>(i)));
  }
}

int64_t Sequence::accepted() const {
  if (step_.empty() || taken_ == 0) return 0;
  // The last token may be the draft's next one: where it ends the sequence, or fills the draft.
  const auto next = static_cast<size_t>(taken_);
  return taken_ - 1 + (next < step_.size() && step_[next] == last_token_ ? 1 : 0);
}

// Whether a step's token is what was sampled before it, so that its logits are of this sequence.
bool Sequence::counts(int64_t token) const {
  return token == taken_ && (token == 0 || step_[static_cast<size_t>(token)] == last_token_);
}

void Sequence::take_logits(int64_t token, std::span<float> logits, double now) {
  if (finished()) return;
  if (prefilling_) token += cached_;
  const bool last = !prefilling_ || token + 1 == prompt_tokens();
  if (wants_all_logits()) {
    if (!last) {
      const int32_t next = request_.prompt[static_cast<size_t>(token) + 1];
      const Result<TokenLogprobs> scored = score(logits, next, request_.prompt_logprobs);
      if (scored.ok()) prompt_logprobs_.push_back(scored.value());
      return;
    }
    sink_->on_prompt_logprobs(prompt_logprobs_);
    prompt_logprobs_ = {};
  }
  if (!last || (!prefilling_ && !counts(token))) return;
  if (request_.max_tokens == 0) {
    finish(FinishReason::kLength, {});
    return;
  }
  sample(logits, now);
}

void Sequence::sample(std::span<float> logits, double now) {
  // Logprobs are of the model's own distribution, and sampling changes the row in place.
  const bool log = request_.logprobs >= 0;
  if (log) raw_logits_.assign(logits.begin(), logits.end());
  const bool bar_end = generated_ < request_.min_tokens;
  const Result<int32_t> sampled =
      sampler_.next(logits.first(sampling_vocabulary_), static_cast<uint64_t>(generated_),
                    bar_end ? std::span<const int32_t>(end_tokens_) : std::span<const int32_t>());
  if (!sampled.ok()) {
    fail(sampled.status());
    return;
  }
  if (!log) return take_token(sampled.value(), nullptr, now);
  const Result<TokenLogprobs> scored = score(raw_logits_, sampled.value(), request_.logprobs);
  if (scored.ok()) take_token(sampled.value(), &scored.value(), now);
}

// The logprobs of a row. Logits that cannot be sampled have none either: the sequence ends.
Result<TokenLogprobs> Sequence::score(std::span<const float> logits, int32_t token, int32_t best) {
  TokenLogprobs logprobs = token_logprobs(logits, token, best);
  if (!std::isnan(logprobs.logprob)) return logprobs;
  const Status invalid = invalid_logits(logits);
  fail(invalid);
  return invalid;
}

// Of a token of a step, if those before it are what is sampled.
SampleRule Sequence::sample_rule(int64_t token) const {
  const int64_t generated = generated_ + token;
  const bool plain = ends_prompt() && sampler_.plain() && request_.logprobs < 0 &&
                     !wants_all_logits() && request_.max_tokens > 0 &&
                     generated >= request_.min_tokens;
  if (!plain) return {};
  return sampler_.rule(static_cast<uint64_t>(generated),
                       static_cast<int32_t>(sampling_vocabulary_));
}

void Sequence::take_sampled(int64_t token, int32_t index, double now) {
  if (!finished() && (prefilling_ || counts(token))) take_token(index, nullptr, now);
}

void Sequence::take_token(int32_t token, const TokenLogprobs* logprobs, double now) {
  if (generated_ == 0) first_token_ = now;
  last_token_time_ = now;
  last_token_ = token;
  ++generated_;
  ++taken_;
  if (drafter_) drafter_->add(token);
  const bool stop = is_stop(token);
  const AfterToken after =
      stop ? sink_->on_stop_token(token, logprobs) : sink_->on_token(token, logprobs);
  if (after == AfterToken::kCancel) {
    finish(FinishReason::kCancelled, Status(Code::kCancelled, "cancelled"));
  } else if (stop || after == AfterToken::kStop) {
    finish(FinishReason::kStop, {});
    if (stop) finish_->stop_token = token;
  } else if (generated_ >= request_.max_tokens || prompt_tokens() + generated_ >= positions_) {
    finish(FinishReason::kLength, {});
  }
}

bool Sequence::is_stop(int32_t token) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

void Sequence::finish(FinishReason reason, Status status) {
  if (finished()) return;
  finish_ = Finish{.reason = reason,
                   .stop_token = {},
                   .status = std::move(status),
                   .own_fault = false,
                   .usage = {}};
}

void Sequence::fail(Status status) {
  if (finished()) return;
  finish(FinishReason::kError, std::move(status));
  finish_->own_fault = true;
}

void Sequence::end_sweep() {
  if (finish_ && finish_->reason == FinishReason::kError) return;
  // The rows of wrong tokens of a draft are as good as empty.
  cached_ +=
      prefilling_ ? static_cast<int64_t>(next_tokens().size()) : std::max<int64_t>(1, taken_);
  if (drafted() > 0) drafter_->judge(drafted(), accepted());
  step_.clear();
  rules_.clear();
  taken_ = 0;
  prefilling_ = cached_ < prompt_tokens();
  if (prefilling_ && !finished()) tell_progress();
}

void Sequence::tell_progress() const {
  try {
    sink_->on_prompt_progress(cached_);
  } catch (const std::bad_alloc&) {
    // Nobody hears of this step; the next one may fit.
  }
}

KvUsage Sequence::kv_usage(const KvCache& cache, const OtherRanks* others) const {
  if (kv_ == nullptr) return {};
  KvUsage usage;
  usage.rule = kv_promise_.rule;
  usage.rows_kept = kv_promise_.budget.rows(cached_);
  usage.rows_dropped = cached_ - usage.rows_kept;
  // A budget that is nearly full can take more, for its state; then nothing is saved.
  const auto bytes = [&](const KvBudget& budget, const KvChunks& chunks) {
    const int64_t rows = kv_promise_.positions;
    return cache.sequence_bytes(rows, budget, chunks) +
           (others == nullptr ? 0 : others->sequence_bytes(rows, budget, chunks));
  };
  const uint64_t full = bytes({}, {});
  const uint64_t taken = bytes(kv_promise_.budget, kv_promise_.chunks);
  usage.bytes_saved = static_cast<int64_t>(full - std::min(full, taken));
  usage.rows_raised = kv_promise_.rows_raised;
  return usage;
}

const Finish& Sequence::sum_up(const KvCache& cache, double now, const OtherRanks* others) {
  SPILLWAY_CHECK(finished());
  Usage& usage = finish_->usage;
  usage.prompt_tokens = prompt_tokens();
  usage.cached_tokens = found_cached_;
  usage.generated_tokens = generated_;
  usage.max_tokens = request_.max_tokens;
  usage.kv = kv_usage(cache, others);
  usage.queue_seconds = (admitted() ? admitted_ : now) - submitted_;
  if (admitted()) usage.prefill_seconds = (first_token_ > 0 ? first_token_ : now) - admitted_;
  if (first_token_ > 0) usage.decode_seconds = last_token_time_ - first_token_;
  return *finish_;
}

}  // namespace spillway
