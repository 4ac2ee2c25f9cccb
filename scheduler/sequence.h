// One request in flight: the scheduler's state of it between sweeps. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/model_shape.h"
#include "offload/kv_cache.h"
#include "policy/batching.h"
#include "scheduler/drafter.h"
#include "scheduler/prefix_cache.h"
#include "scheduler/request.h"
#include "scheduler/sampler.h"
#include "scheduler/stages/other_ranks.h"
#include "scheduler/whole_beginnings.h"

namespace spillway {

// A sequence's KV reservation: for `positions` positions, of which `rule` keeps `budget` in layers
// without a sliding window, by `rows_raised` rows more than it asks for (kv_rows_raised()).
struct SequenceKv {
  KvRuleKind rule = KvRuleKind::kFull;
  int64_t positions = 0;
  KvBudget budget;
  KvChunks chunks;
  int64_t rows_raised = 0;
};

// The chunks in which a prompt goes through sweeps of so many prompt tokens, if it is longer or may
// be cut for another reason (may_be_cut()).
inline KvChunks chunks_of(int64_t prompt_tokens, int64_t prefill_tokens, bool may_be_cut = false) {
  if (!may_be_cut && !goes_in_chunks(prompt_tokens, prefill_tokens)) return {};
  return {prompt_tokens, prefill_tokens};
}

class Sequence {
 public:
  Sequence(RequestId id, Request request, std::shared_ptr<TokenSink> sink, const ModelShape& shape,
           const SequenceKv& promise, int64_t sampling_vocabulary, double submitted);

  RequestId id() const { return id_; }
  int32_t priority() const { return request_.priority; }
  uint64_t client() const { return request_.client; }
  QueueClass queue_class() const { return spillway::queue_class(request_); }
  int64_t prompt_tokens() const { return static_cast<int64_t>(request_.prompt.size()); }
  int64_t generated() const { return generated_; }

  const SequenceKv& promise() const { return kv_promise_; }

  std::span<const int32_t> prompt() const { return request_.prompt; }
  const CacheSalt& salt() const { return request_.cache_salt; }

  // Its steps may have drafts of up to so many tokens. Call before admit(). REQUIRES: it keeps
  // every row of its cache, so that those of wrong drafts are forgotten by storing others over
  // them.
  void allow_drafts(int64_t tokens_max) { draft_tokens_ = tokens_max; }
  int64_t draft_tokens() const { return draft_tokens_; }

  // `number`: counts all admissions. `prefix`: of its prompt's beginning, the blocks that it
  // shares; the first `cached` tokens have been computed. With shared blocks it goes on in chunks:
  // set_chunk() must follow.
  void admit(std::unique_ptr<KvSequence> kv, PrefixCache::Use prefix, int64_t cached,
             uint64_t number, double now);
  uint64_t admission() const { return admission_; }
  bool admitted() const { return admitted_ > 0; }
  KvSequence* kv() const { return kv_.get(); }
  std::unique_ptr<KvSequence> take_kv() { return std::move(kv_); }
  // The cache itself, to be moved to another place.
  std::unique_ptr<KvSequence>* kv_place() { return &kv_; }
  PrefixCache::Use& prefix() { return prefix_; }
  const PrefixCache::Use& prefix() const { return prefix_; }
  // Until the end of its prompt, under a limited rule: what it goes on behind, or computes first.
  const WholeBeginnings::Use& beginning() const { return beginning_; }
  void set_beginning(WholeBeginnings::Use beginning) { beginning_ = std::move(beginning); }
  int64_t cached() const { return cached_; }  // Positions
  // Tokens of its prompt that it does not compute.
  int64_t found_cached() const { return found_cached_; }
  int64_t prompt_computed() const { return prompt_tokens() - found_cached_; }

  // Whether it shares nothing with others, because there was no room for it otherwise.
  bool alone() const { return alone_; }
  void stay_alone() { alone_ = true; }
  int64_t tokens_max() const { return request_.max_tokens; }

  // Whether a chunk of its prompt has been set, and the prompt has not ended.
  bool in_chunks() const { return prefilling_ && chunk_ > 0; }
  int64_t prompt_left() const { return prefilling_ ? prompt_tokens() - cached_ : 0; }
  // Sets the tokens of the next sweep; without it they are the whole prompt. REQUIRES: promised
  // chunks, or a beginning; 1 to prompt_left().
  void set_chunk(int64_t tokens) { chunk_ = tokens; }

  // Gives its next step a draft of up to `most` tokens, if it has one: not beyond its last token,
  // nor what its cache has blocks for.
  void draft(int64_t most);
  int64_t drafted() const { return step_.empty() ? 0 : static_cast<int64_t>(step_.size()) - 1; }
  // Of these, after the sweep's logits: the tokens that were sampled, too.
  int64_t accepted() const;

  // The tokens of the next sweep: the prompt or its next chunk, then one token at a time, and its
  // draft.
  std::span<const int32_t> next_tokens() const;
  int64_t next_position() const;
  bool prefilling() const { return prefilling_; }
  // Whether the next sweep gives logits: not a chunk before the last.
  bool ends_prompt() const { return !in_chunks() || chunk_ == prompt_left(); }
  bool wants_all_logits() const { return prefilling_ && wants_prompt_logits(); }
  bool wants_prompt_logits() const { return request_.prompt_logprobs >= 0; }

  // With a count: the next token is sampled by this rule, and nothing else of the logits is needed.
  SampleRule sample_rule() const { return sample_rule(0); }
  // With a draft: that of each token. Until end_sweep().
  std::span<const SampleRule> sample_rules() const { return rules_; }

  double last_token_time() const { return last_token_time_; }  // 0: there is none

  // Takes the logits of one of next_tokens(), in their order: scores the prompt, samples the next
  // token. Those behind a draft's first wrong token are ignored.
  void take_logits(int64_t token, std::span<float> logits, double now);

  // Takes what was sampled in place of a token's logits, when its rule has a count.
  void take_sampled(int64_t token, int32_t index, double now);

  // Call after the sweep: its tokens are cached now.
  void end_sweep();

  // Ends the sequence from outside. Later endings are ignored.
  void finish(FinishReason reason, Status status);
  // Ends it by its own fault (Finish::own_fault): its logits give no token.
  void fail(Status status);
  bool finished() const { return finish_.has_value(); }

  // Computes the usage, in the cache and those of other ranks, before it is released. REQUIRES:
  // finished().
  const Finish& sum_up(const KvCache& cache, double now, const OtherRanks* others = nullptr);

  // The argument of the sink's on_finish(), once. REQUIRES: summed up.
  const Finish& ending() const { return *finish_; }
  TokenSink& sink() const { return *sink_; }

 private:
  SampleRule sample_rule(int64_t token) const;
  bool counts(int64_t token) const;
  void sample(std::span<float> logits, double now);
  Result<TokenLogprobs> score(std::span<const float> logits, int32_t token, int32_t best);
  void tell_progress() const;
  void take_token(int32_t token, const TokenLogprobs* logprobs, double now);
  bool is_stop(int32_t token) const;
  KvUsage kv_usage(const KvCache& cache, const OtherRanks* others) const;

  RequestId id_;
  Request request_;
  SequenceKv kv_promise_;
  std::shared_ptr<TokenSink> sink_;
  Sampler sampler_;
  std::vector<int32_t> end_tokens_;  // The model's, unless ignored, and the request's
  int64_t positions_;
  size_t sampling_vocabulary_;
  std::unique_ptr<KvSequence> kv_;
  WholeBeginnings::Use beginning_;
  PrefixCache::Use prefix_;  // Of the blocks in front of kv_'s own
  int64_t found_cached_ = 0;
  bool alone_ = false;
  bool prefilling_ = true;
  uint64_t admission_ = 0;
  int64_t cached_ = 0;  // Positions
  int64_t chunk_ = 0;   // Tokens of the next chunk of a prompt in chunks; 0: it goes whole
  int64_t generated_ = 0;
  int32_t last_token_ = 0;
  int64_t taken_ = 0;  // Tokens in this sweep
  int64_t draft_tokens_ = 0;
  std::optional<Drafter> drafter_;
  std::vector<int32_t> step_;      // A step with its draft; empty: without
  std::vector<SampleRule> rules_;  // Of these
  std::vector<TokenLogprobs> prompt_logprobs_;
  std::vector<float> raw_logits_;
  std::optional<Finish> finish_;
  double submitted_, admitted_ = 0, first_token_ = 0, last_token_time_ = 0;
};

}  // namespace spillway
