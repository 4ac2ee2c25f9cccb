// Admission of waiting requests to sweeps, and division of a sweep into micro-batches. The
// scheduler and the engine call these functions when they run, the cost model when it predicts, so
// that what is planned is what runs. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/model_shape.h"

namespace spillway {

struct SweepLimits {
  int64_t block_sequences = 1;
  int64_t prefill_tokens = 2048;  // Prompt tokens of one sweep; a longer prompt goes in chunks
  // The prompt tokens that sweeps take in the mean while requests wait, so that each has prompts to
  // compute while it reads for the sequences that decode; 0: as many as fit.
  int64_t prefill_target = 0;
  uint64_t kv_bytes = 0;  // Capacity of all tiers; running sequences reserve it
  // The cached positions that take as much arithmetic in attention as a token's linear layers
  // (positions_per_token()); 0: attention counts for nothing.
  double positions_per_token = 0;

  bool has_target() const { return prefill_target > 0 && prefill_target < prefill_tokens; }
  int64_t target() const { return has_target() ? prefill_target : prefill_tokens; }
};

// See SweepLimits: multiply-adds of a token's linear layers over those of its attention to one
// position, the head aside; 0 where every layer has a sliding window, and attention does not grow.
double positions_per_token(const ModelShape& shape);

// The next requests of the queue that have the same lengths and KV size.
struct WaitingRequests {
  int64_t count = 1;
  int64_t prompt_tokens = 1;  // At least 1
  uint64_t kv_bytes = 0;      // KV cache bytes that each reserves until it ends
  bool may_be_cut = false;    // See may_be_cut()
};

// A sweep's contents while requests are admitted to it.
struct SweepContents {
  int64_t sequences = 0;      // Including those admitted to this sweep
  int64_t prompt_tokens = 0;  // Of whole prompts, and of the last chunk of one
  uint64_t kv_bytes = 0;      // Reserved by all sequences
  // The length of the prompt that goes in chunks and does not end in this sweep; 0: there is none.
  int64_t prompt_in_chunks = 0;
  // Tokens that earlier sweeps took above the target (owed_after()); 0 where no sequence runs,
  // since nothing is gained by waiting then.
  int64_t owed = 0;
};

// The requests that join a sweep: `whole` of them with their whole prompts, and behind these one
// more that begins to go in chunks.
struct AdmittedRequests {
  int64_t whole = 0;
  bool in_chunks = false;

  int64_t count() const { return whole + (in_chunks ? 1 : 0); }
};

// Whether a prompt is longer than a sweep's prompt tokens, so that it goes through in chunks.
inline bool goes_in_chunks(int64_t prompt_tokens, int64_t prefill_tokens) {
  return prompt_tokens > prefill_tokens;
}

// Whether a prompt that would fit a sweep may be cut where the target is reached: where its cache
// is the same either way, as `keeps_all_rows` (no rule drops a row, and no layer has a window)
// says.
inline bool may_be_cut(bool keeps_all_rows, const SweepLimits& limits) {
  return keeps_all_rows && limits.has_target();
}

// The requests that join the sweep, in queue order, while the block, the KV cache and the sweep's
// prompt tokens have capacity. Requests behind the first that does not fit wait, too.
//
// Whole prompts join until the target is reached, the last one beyond it where it may not be cut.
// One prompt at a time goes in chunks. Beside it whole prompts take half of the sweep's prompt
// tokens, or, beside one that is longer than a sweep, one of any length, so that they do not wait
// for its end.
AdmittedRequests requests_admitted(const WaitingRequests& next, const SweepContents& sweep,
                                   const SweepLimits& limits);

// Whether a request that does not join the sweep would if there were no target.
bool joins_but_for_target(const WaitingRequests& next, SweepContents sweep, SweepLimits limits);

// What the sweep after this one owes, so that the mean is the target: the tokens that this one
// took above the target, its chunk's among `prompt_tokens`; negative, to a chunk of the least
// length, if it took fewer. 0 without a target.
int64_t owed_after(const SweepContents& sweep, const SweepLimits& limits);

// Tokens of the next chunk of a prompt of which `done` are cached and `left` are left, beside
// `taken` tokens of whole prompts and owed ones. The chunk takes as much arithmetic as the rest of
// the sweep's target, but at least a quarter of it (64 tokens are enough to begin), would take as
// the prompt's beginning: a token far behind it attends to so many positions that a chunk of one
// length would hold up the others ever longer. But it has at least 64 tokens, or as many as that
// rest.
int64_t chunk_tokens(int64_t done, int64_t left, int64_t taken, const SweepLimits& limits);

// Neighbouring sequences of a sweep that are computed together.
struct MicroBatch {
  size_t first_item = 0, items = 0;
  int64_t rows = 0;
};

struct MicroBatchLimits {
  int64_t rows = 1024;    // Closed before it exceeds them, unless one prompt does
  int64_t sequences = 0;  // Closed when it has this many; 0: no limit
};

// Appends the sweep's next `count` sequences, of `rows` each, to its micro-batches, filling the
// last one first.
void add_to_micro_batches(int64_t count, int64_t rows, const MicroBatchLimits& limits,
                          std::vector<MicroBatch>* batches);

}  // namespace spillway
