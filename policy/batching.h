// How waiting requests become sweeps, and how a sweep is cut into micro-batches. The scheduler and
// the engine call these functions when they run, the cost model when it predicts, so that what is
// planned is what runs. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spillway {

struct SweepLimits {
  int64_t block_sequences = 1;
  int64_t prefill_tokens = 2048;  // Prompt tokens of one sweep; one longer prompt goes alone
  uint64_t kv_bytes = 0;          // Of all tiers; what running sequences reserve
};

// The next requests of the queue, as far as they are alike.
struct WaitingRequests {
  int64_t count = 1;
  int64_t prompt_tokens = 1;  // At least 1
  uint64_t kv_bytes = 0;      // Of cache, that each reserves until it ends
};

// What a sweep holds while requests are admitted to it.
struct SweepContents {
  int64_t sequences = 0;      // Those admitted to this sweep included
  int64_t prompt_tokens = 0;  // Of those
  uint64_t kv_bytes = 0;      // Reserved by all sequences
};

// How many of the requests join the sweep, in order of the queue: while the block, the KV cache and
// the sweep's prompt tokens have room. Those behind the first that does not fit wait, too.
int64_t requests_admitted(const WaitingRequests& next, const SweepContents& sweep,
                          const SweepLimits& limits);

// Neighbouring sequences of a sweep that are computed at once.
struct MicroBatch {
  size_t first_item = 0, items = 0;
  int64_t rows = 0;
};

struct MicroBatchLimits {
  int64_t rows = 1024;    // A micro-batch is closed before it exceeds them, unless one prompt does.
  int64_t sequences = 0;  // ... or when it has this many; 0: no limit
};

// Appends the sweep's next `count` sequences, of `rows` each, to its micro-batches: to the last one
// as far as it has room.
void add_to_micro_batches(int64_t count, int64_t rows, const MicroBatchLimits& limits,
                          std::vector<MicroBatch>* batches);

}  // namespace spillway
