// RankPeers: what the engines of ranks that share every layer say to each other in a sweep, besides
// what they compute (RankGroup). Host-side messages; nothing here waits for a device.
//
// Thread rule: the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

// Items whose cache could not be read or written, and why.
using ItemFailures = std::vector<std::pair<size_t, Status>>;

class RankPeers {
 public:
  virtual ~RankPeers() = default;

  // Called when a rank's layers are queued. Tells the first rank which items failed here; on the
  // first rank, waits for all others, and returns which failed there.
  virtual Result<ItemFailures> meet(const ItemFailures& own) = 0;

  // On the first rank: the others are to compute their part of the logits of so many rows with it.
  // 0: there are no more in this sweep.
  virtual void ask_logits(int64_t rows) = 0;
  // On the others: what the first asks next. Blocks. kDeviceLost: its sweep has failed.
  virtual Result<int64_t> next_logits() = 0;
};

}  // namespace spillway
