// How much host memory a run may take.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/status.h"

namespace spillway {

// Taken by what no plan counts: code, threads, tokenizer, sockets, scratch.
constexpr uint64_t kProcessBytes = uint64_t{256} << 20;

struct MemoryBudget {
  uint64_t bytes = 0;
  bool from_flag = false;  // Else: what is free now, less a reserve for everything else
};

// `flag`: --host-memory. Reads what is available from the kernel otherwise.
MemoryBudget host_budget(std::optional<uint64_t> flag);

}  // namespace spillway
