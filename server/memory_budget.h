// How much host memory a run may take, and what of it is left for the KV cache.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/status.h"

namespace spillway {

struct MemoryBudget {
  uint64_t bytes = 0;
  bool from_flag = false;  // Else: what is free now, less a reserve for everything else
};

// `flag`: --host-memory. Reads what is available from the kernel otherwise.
MemoryBudget host_budget(std::optional<uint64_t> flag);

struct KvBudgetRequest {
  MemoryBudget budget;
  uint64_t weight_bytes = 0;
  uint64_t buffer_bytes = 0;
  uint64_t longest_sequence_bytes = 0;  // The cache of a sequence of all positions
  int64_t block_sequences = 0;
};

// Bytes for the KV cache: what the block can ever use, or what the budget leaves. kInfeasible when
// not one longest sequence fits; the message names the missing bytes and the next step.
Result<uint64_t> kv_budget(const KvBudgetRequest& request);

}  // namespace spillway
