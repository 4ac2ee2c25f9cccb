// A request as the engine sees it: token ids in, tokens out. No text, no JSON (the server handles
// those). Requests are plain values; a TokenSink is called by the engine thread only.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "policy/kv_rule.h"

namespace spillway {

enum class RequestId : uint64_t {};  // Never reused.

// The sampling rules for the next token, applied in this order (as in vLLM): logit_bias, then
// repetition, frequency and presence penalty, then temperature, min_p, top_k (ties stay), top_p.
// Defaults leave the model's distribution as it is.
struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy, the highest logit; ties: the lowest id.
  float top_p = 1.0f;               // (0, 1]
  int32_t top_k = 0;                // 0: off
  float min_p = 0.0f;               // [0, 1]
  float repetition_penalty = 1.0f;  // > 0, over prompt and generated tokens
  float presence_penalty = 0.0f;    // over generated tokens
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;  // Token t's sample depends on (seed, t) alone, not on the batch
  std::vector<std::pair<int32_t, float>> logit_bias;  // Added to the logit of a token id.
};

// Whose prompts share cached beginnings: those with equal salts alone, so that nobody learns from
// the time that a prompt takes what others have asked.
struct CacheSalt {
  uint64_t key = 0;   // Of the client's credentials; 0: none
  uint64_t text = 0;  // That a request chooses; 0: none
  friend auto operator<=>(const CacheSalt&, const CacheSalt&) = default;
};

struct Request {
  std::vector<int32_t> prompt;  // 1 .. positions tokens, each in [0, vocabulary)
  int32_t max_tokens = 16;      // 0: only score the prompt
  int32_t min_tokens = 0;       // Stop tokens are barred before this many tokens
  bool ignore_eos = false;
  std::vector<int32_t> stop_tokens;  // Besides the model's end tokens
  SamplingParams sampling;
  int32_t logprobs = -1;         // -1: none; k: each token's logprob and the k best
  int32_t prompt_logprobs = -1;  // Likewise for the prompt's tokens
  int32_t priority = 0;          // Lower runs first; equal: clients take turns
  uint64_t client = 0;           // One client's requests run in order of arrival
  KvRuleChoice kv;               // Overrides the scheduler's KV rule
  CacheSalt cache_salt;
  bool batch = false;  // A line of a batch, for which nobody waits: for the statistics alone
};

// How the statistics tell requests in the queue apart: lines of batches, and of the others those
// with a priority below 0, of 0 and above it.
enum class QueueClass : uint8_t { kPriority, kInteractive, kBackground, kBatch };
constexpr size_t kQueueClasses = 4;
using ClassCounts = std::array<int64_t, kQueueClasses>;
inline int64_t sum(const ClassCounts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}
inline ClassCounts difference(const ClassCounts& from, const ClassCounts& less) {
  ClassCounts left = from;
  for (size_t i = 0; i < kQueueClasses; ++i) left[i] -= less[i];
  return left;
}

inline QueueClass queue_class(const Request& request) {
  if (request.batch) return QueueClass::kBatch;
  if (request.priority == 0) return QueueClass::kInteractive;
  return request.priority < 0 ? QueueClass::kPriority : QueueClass::kBackground;
}

// The log-probabilities at one position, of the model's distribution (before sampling parameters).
struct TokenLogprobs {
  float logprob = 0;                            // Of the token itself
  int32_t rank = 0;                             // 1: no token is likelier; 0: not known
  std::vector<std::pair<int32_t, float>> best;  // Highest first
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kError };
constexpr size_t kFinishReasons = 4;

// Positions that a KV rule kept and dropped of those computed, and the bytes by which its
// reservation was smaller than the full rule's; rows by which its budget was raised to hold the
// positions that the request protects. Of one sequence or summed over several.
struct KvUsage {
  KvRuleKind rule = KvRuleKind::kFull;
  int64_t rows_kept = 0;
  int64_t rows_dropped = 0;
  int64_t bytes_saved = 0;
  int64_t rows_raised = 0;

  void add(const KvUsage& other) {
    if (other.rule != KvRuleKind::kFull) rule = other.rule;
    rows_kept += other.rows_kept;
    rows_dropped += other.rows_dropped;
    bytes_saved += other.bytes_saved;
    rows_raised += other.rows_raised;
  }
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // Of these: not computed, since another prompt began with them
  int64_t generated_tokens = 0;
  int64_t max_tokens = 0;  // The request's
  KvUsage kv;
  double queue_seconds = 0;    // Submitted until admitted
  double prefill_seconds = 0;  // Admitted until the first token
  double decode_seconds = 0;   // First token until the last
};

struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::optional<int32_t> stop_token;  // The stop token that ended it
  Status status;                      // For kError and kCancelled
  // kError caused by the sequence's own numbers (its logits are not finite): it would fail again.
  // Any other error is the machine's; the request may succeed later.
  bool own_fault = false;
  Usage usage;
};

// A sink's decision on its sequence after a token.
enum class AfterToken : uint8_t {
  kGoOn,
  kStop,    // A stop string was found: on_finish(kStop) follows.
  kCancel,  // The answer is not wanted any more: on_finish(kCancelled) follows.
};

// Receives a sequence's results. Called on the engine thread, in order: on_admitted, then
// on_prompt_progress, at least once, then
// on_prompt_logprobs (if asked for), then on_token per token, then on_finish exactly once. Must not
// block. The scheduler keeps the sink alive until on_finish has returned.
class TokenSink {
 public:
  virtual ~TokenSink() = default;

  virtual void on_admitted() {}

  // `tokens` of the prompt are in the KV cache, of a prompt that is not done: first those that
  // another prompt left there, then more with each chunk.
  virtual void on_prompt_progress(int64_t tokens) { static_cast<void>(tokens); }

  // One entry per prompt token; the first has no distribution and is {0, {}}.
  virtual void on_prompt_logprobs(std::span<const TokenLogprobs> logprobs) {
    static_cast<void>(logprobs);
  }

  // `logprobs` is null unless asked for.
  virtual AfterToken on_token(int32_t token, const TokenLogprobs* logprobs) = 0;

  // Called in place of on_token() for the stop token that ends the sequence: a generated token like
  // the others, but its text is left out of the answer.
  virtual AfterToken on_stop_token(int32_t token, const TokenLogprobs* logprobs) {
    return on_token(token, logprobs);
  }

  virtual void on_finish(const Finish& finish) = 0;
};

}  // namespace spillway
