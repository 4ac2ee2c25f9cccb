// The work of one sweep, in counts: planned sweeps predict (cost_model.h), sweeps that the engine
// logged bound (bound.h), and both are costed by one function. Counts that a plan derives from
// shares and means are not whole. Plain values.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spillway {

struct SweepWork {
  int64_t decoding = 0;  // Rows of sequences that decode: one each, and those of drafts
  int64_t drafted = 0;   // Of these, the ones of drafts
  int64_t prompts = 0;   // Sequences whose prompts end in the sweep
  // Sequences of whose prompts a chunk is computed that does not end them
  int64_t prompts_unfinished = 0;
  int64_t prompt_tokens = 0;  // Rows of all those sequences
  int64_t logit_rows = 0;     // Rows that the head reads
  // Where some layers have a sliding window, means over the layers.
  double prompt_rows = 0;   // Rows of prompt_tokens kept under the KV rule, which leave the device
  double prompt_pairs = 0;  // Sum over prompts of s (s + 1) / 2: query-key pairs of a head
  double cached_rows = 0;   // Sum over decoding sequences of the rows they attend to

  // Bytes of a sweep that ran, between its first and last op; a prefetch for a neighbouring sweep
  // counts in the sweep in which it was transferred.
  double disk_read_bytes = 0, disk_write_bytes = 0;
  double to_device_bytes = 0, to_host_bytes = 0;
  double host_attended_bytes = 0;  // Cached rows that the CPU attends to beside a discrete device

  int64_t prompt_parts() const { return prompts + prompts_unfinished; }
  int64_t tokens() const { return decoding + prompt_tokens; }  // Rows of the linear layers
};

// Query-key pairs of a head, for `tokens` of a prompt after `position`, each of which attends to
// the last `window` positions (0: to all).
inline int64_t prompt_pairs(int64_t position, int64_t tokens, int64_t window) {
  const int64_t all = window == 0 ? tokens : std::clamp<int64_t>(window - position, 0, tokens);
  return all * position + all * (all + 1) / 2 + (tokens - all) * window;
}

}  // namespace spillway
