// What one sweep does, in counts: planned ones predict (cost_model.h), those that the engine logs
// bound (bound.h), and both are costed by one function. Numbers that a plan takes as shares and
// means are not whole. Plain values.
#pragma once

#include <cstdint>

namespace spillway {

struct SweepWork {
  int64_t decoding = 0;       // Rows of sequences that decode, one each
  int64_t prompts = 0;        // Sequences prefilled
  int64_t prompt_tokens = 0;  // Their rows
  int64_t logit_rows = 0;     // Rows of the head
  int64_t prompt_rows = 0;    // Of prompt_tokens, kept under the KV rule: what leaves the device
  int64_t prompt_pairs = 0;   // Sum over prompts of s (s + 1) / 2: query-key pairs of a head
  double cached_rows = 0;     // Sum over decoding sequences of the rows they attend to

  // Of a sweep that ran: between its first and last op; what a neighbour prefetched counts where it
  // was transferred.
  double disk_read_bytes = 0, disk_write_bytes = 0;
  double to_device_bytes = 0, to_host_bytes = 0;
  double host_attended_bytes = 0;  // Cached rows that the CPU reads in a device's place

  int64_t tokens() const { return decoding + prompt_tokens; }  // Rows of the linear layers
};

}  // namespace spillway
