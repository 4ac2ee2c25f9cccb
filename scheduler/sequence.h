// One request in flight: what the scheduler knows of it between sweeps. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/model_shape.h"
#include "offload/kv_cache.h"
#include "scheduler/request.h"
#include "scheduler/sampler.h"

namespace spillway {

// The KV memory that a sequence will be given: for `positions` positions, of which `budget` keeps
// what `rule` says.
struct SequenceKv {
  KvRuleKind rule = KvRuleKind::kFull;
  int64_t positions = 0;
  KvBudget budget;
};

class Sequence {
 public:
  Sequence(RequestId id, Request request, std::shared_ptr<TokenSink> sink, const ModelShape& shape,
           const SequenceKv& promise, int64_t sampling_vocabulary, double submitted);

  RequestId id() const { return id_; }
  int32_t priority() const { return request_.priority; }
  uint64_t client() const { return request_.client; }
  int64_t prompt_tokens() const { return static_cast<int64_t>(request_.prompt.size()); }
  int64_t generated() const { return generated_; }

  const SequenceKv& promise() const { return kv_promise_; }

  void admit(std::unique_ptr<KvSequence> kv, double now);
  bool admitted() const { return admitted_ > 0; }
  KvSequence* kv() const { return kv_.get(); }
  std::unique_ptr<KvSequence> take_kv() { return std::move(kv_); }

  // What the next sweep computes: the prompt, then one token at a time.
  std::span<const int32_t> next_tokens() const;
  int64_t next_position() const;
  bool wants_all_logits() const { return prefilling_ && request_.prompt_logprobs >= 0; }

  // With a count: the next token is drawn by this rule, and nobody asks for more.
  SampleRule sample_rule() const;

  // Takes the logits of one of next_tokens(): scores the prompt, draws the next token.
  void take_logits(int64_t token, std::span<float> logits, double now);

  // In their place, when sample_rule(): what was drawn.
  void take_sampled(int32_t token, double now);

  // After the sweep: its tokens are cached now.
  void end_sweep();

  // Ends the sequence from outside. Keeps the first ending.
  void finish(FinishReason reason, Status status);
  // Ends it by its own fault: its numbers give no token.
  void fail(Status status);
  bool finished() const { return finish_.has_value(); }

  // Before the cache is given back: works out the usage. REQUIRES: finished().
  const Finish& sum_up(const KvCache& cache, double now);

  // What the sink hears, once. REQUIRES: summed up.
  const Finish& ending() const { return *finish_; }
  TokenSink& sink() const { return *sink_; }

 private:
  void sample(std::span<float> logits, double now);
  Result<TokenLogprobs> score(std::span<const float> logits, int32_t token, int32_t best);
  void take_token(int32_t token, const TokenLogprobs* logprobs, double now);
  bool is_stop(int32_t token) const;
  KvUsage kv_usage(const KvCache& cache) const;

  RequestId id_;
  Request request_;
  SequenceKv kv_promise_;
  std::shared_ptr<TokenSink> sink_;
  Sampler sampler_;
  std::vector<int32_t> end_tokens_;  // The model's, unless ignored, and the request's
  int64_t positions_;
  size_t sampling_vocabulary_;
  std::unique_ptr<KvSequence> kv_;
  bool prefilling_ = true;
  int64_t cached_ = 0;  // Positions
  int64_t generated_ = 0;
  int32_t last_token_ = 0;
  std::vector<TokenLogprobs> prompt_logprobs_;
  std::vector<float> raw_logits_;
  std::optional<Finish> finish_;
  double submitted_, admitted_ = 0, first_token_ = 0, last_token_time_ = 0;
};

}  // namespace spillway
