// Picks a sequence's next token from a row of logits, by the rules of its SamplingParams.
//
// One Sampler per sequence, owned by it; it counts the tokens seen so far where a penalty needs
// that. Thread rule: one thread at a time; samplers of different sequences may run in parallel.
//
// The sample of step t depends on (seed, t) and on the logits alone: no state is carried from step
// to step, nothing depends on the batch, and the candidates are visited in the order of their ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/sampling/sample.h"
#include "scheduler/request.h"

namespace spillway {

class Sampler {
 public:
  // `params` within the ranges in request.h. tokens_max: most tokens to be sampled; with a penalty,
  // one count per prompt token and sampled token is reserved here, and nothing is allocated later.
  Sampler(SamplingParams params, std::span<const int32_t> prompt, int64_t tokens_max);

  // Samples the token of step `step` (0: the first generated); the penalties of later steps count
  // it. `barred` ids cannot be sampled; ids outside of the row are ignored there and in the
  // parameters. Uses `logits` as working memory: take logprobs and copies before. Greedy without
  // bias, penalty and bar reads the row once and writes nothing. kCorruption: a logit is NaN or
  // +inf, or none is left above -inf; only this sequence has to end. REQUIRES: at least one logit.
  Result<int32_t> next(std::span<float> logits, uint64_t step, std::span<const int32_t> barred);

  // Whether next() without bars only samples from `logits` by rule(step, logits.size()).
  bool plain() const { return params_.logit_bias.empty() && !penalises_; }
  SampleRule rule(uint64_t step, int32_t vocabulary) const;

  // Turns logits into the distribution that next() samples from, one probability per token,
  // counting nothing. For tests. Errors as next().
  Status probabilities(std::span<float> logits, std::span<const int32_t> barred) const;

 private:
  struct Count {
    int32_t token;
    int32_t generated;  // 0: it occurs in the prompt only.
  };
  void adjust(std::span<float> logits, std::span<const int32_t> barred) const;
  void count(int32_t token);

  SamplingParams params_;
  bool penalises_;
  std::vector<Count> counts_;  // By token
};

// The error with which next() refuses `logits`: kCorruption.
Status invalid_logits(std::span<const float> logits);

// A number in [0, 1) with 53 random bits that depends on its arguments alone (SplitMix64).
double uniform_sample(uint64_t seed, uint64_t step);

// The logprob of `token` under the softmax of `logits`, and the `best` highest (ties: the lower id
// first). Logits that next() refuses give NaN logprobs. REQUIRES: token is an index of the row.
TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, int32_t best);

}  // namespace spillway
