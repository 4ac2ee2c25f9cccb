// Decides what runs next: a bounded queue of requests in, sweeps of the engine out.
//
// Thread rule: submit(), cancel(), drain() and stats() from any thread; everything else, the token
// sinks included, happens on the one engine thread that the scheduler owns.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"
#include "scheduler/engine/link_totals.h"
#include "scheduler/histogram.h"
#include "scheduler/request.h"

namespace spillway {

// Times and lengths of sequences that ended by a stop or by their length.
struct SequenceTimes {
  Histogram queue{kRequestBounds};           // Submitted until admitted
  Histogram prefill{kRequestBounds};         // Admitted until the first token
  Histogram decode{kRequestBounds};          // First token until the last
  Histogram whole{kRequestBounds};           // Submitted until the last token
  Histogram first_token{kFirstTokenBounds};  // Submitted until the first token, if any
  Histogram each_token{kTokenBounds};        // `decode` by its tokens, of two tokens and more
  Histogram prompt_tokens{kCountBounds};
  Histogram generated_tokens{kCountBounds};
  Histogram max_tokens{kCountBounds};  // As the request had it

  void add(const Finish& finish) {
    if (finish.reason != FinishReason::kStop && finish.reason != FinishReason::kLength) return;
    const Usage& usage = finish.usage;
    const double first = usage.queue_seconds + usage.prefill_seconds;
    queue.add(usage.queue_seconds);
    prefill.add(usage.prefill_seconds);
    decode.add(usage.decode_seconds);
    whole.add(first + usage.decode_seconds);
    if (usage.generated_tokens > 0) first_token.add(first);
    if (usage.generated_tokens > 1) {
      each_token.add(usage.decode_seconds / static_cast<double>(usage.generated_tokens - 1));
    }
    prompt_tokens.add(static_cast<double>(usage.prompt_tokens));
    generated_tokens.add(static_cast<double>(usage.generated_tokens));
    max_tokens.add(static_cast<double>(usage.max_tokens));
  }
};

// The last sweep that ended.
struct SweepStats {
  double ended = 0;  // steady_seconds(); 0: there was none
  double seconds = 0;
  int64_t decoding = 0;       // Sequences that went on
  int64_t prompt_tokens = 0;  // Computed
  // The parts of `seconds` in which the engine waited for data, and for room to write it.
  double weights_wait = 0, kv_wait = 0, activations_wait = 0, staging_wait = 0;
};

// The time of all sweeps by what the engine did in it. On a device with memory of its own, copies
// from and to it are queued: what it waits for them is in `compute`.
struct SweepSeconds {
  double compute = 0;
  // Waiting for reads from disk, and for room to write there.
  double weights = 0, kv = 0, activations = 0, staging = 0;
  double other = 0;  // Putting sweeps together, and sweeps that failed
};

// Drafts behind decode steps, as vLLM counts them.
struct DraftCounts {
  uint64_t drafts = 0;    // Steps with a draft
  uint64_t drafted = 0;   // Tokens of these
  uint64_t accepted = 0;  // Of which so many were the tokens that were sampled
};

struct SchedulerStats {
  int64_t running = 0;  // Sequences in the block, those set aside among them
  int64_t waiting = 0;  // Accepted, not yet admitted
  ClassCounts running_by_class{}, waiting_by_class{};
  uint64_t set_aside = 0;  // Times that a sequence was set aside to make room for others
  uint64_t sweeps = 0;
  uint64_t sweeps_failed = 0;     // Among `sweeps`
  int64_t failures_in_a_row = 0;  // Sweeps that have failed since the last good one
  double failed_seconds_ago = 0;  // Time since the last failed sweep
  double stalled_seconds = 0;     // With work waiting: time since the last sweep ended; else 0
  uint64_t prompt_tokens = 0;     // Prefilled
  // Tokens of admitted prompts that were looked up in the prefix cache, and of these those found.
  uint64_t prefix_queries = 0, prefix_hits = 0;
  uint64_t generated_tokens = 0;
  DraftCounts drafts;
  int64_t prefill_target = 0;  // Prompt tokens that sweeps aim at now; 0: there is no target
  int64_t kv_bytes_used = 0;   // By sequences, those set aside left out
  int64_t prefix_bytes = 0;    // Of beginnings of prompts, whether they are in use or not
  int64_t kv_bytes_total = 0;
  KvUsage kv;                                    // Sum over ended sequences
  std::array<uint64_t, kFinishReasons> ended{};  // Sequences, by FinishReason
  SequenceTimes times;
  Histogram token_gaps{kTokenBounds};  // From a token of a sequence to its next one
  double busy_seconds = 0;             // Time inside sweeps
  SweepSeconds seconds;                // Its parts
  // The least time that these sweeps need by the machine's profile; none: there is no profile.
  std::optional<double> bound_seconds;
  // Of the last minute of work: older sweeps count less and less.
  double recent_tokens = 0, recent_seconds = 0, recent_bound_seconds = 0;
  LinkTable links;  // At the end of the last sweep
  SweepStats last_sweep;
  bool healthy = true;  // False after an engine error that only a restart cures
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;  // Cancels running sequences and joins the engine thread

  virtual const ModelShape& shape() const = 0;

  // Most sequences that one request can have in the queue and in the block together.
  virtual int64_t queue_max() const = 0;

  // Checks the request against the model and the KV memory and queues it. kInvalidArgument: it can
  // never run. kCapacity: the queue is full, try later. kCancelled: draining.
  virtual Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) = 0;

  // The sequence ends before its next token with kCancelled; unknown ids are ignored.
  virtual void cancel(RequestId id) = 0;

  // Refuses new requests; blocks until the last one has finished or `seconds` have passed, then
  // cancels the remaining ones.
  virtual void drain(double seconds) = 0;

  virtual SchedulerStats stats() const = 0;
};

}  // namespace spillway
