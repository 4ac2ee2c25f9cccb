// The workload of a file of requests, estimated from its first lines, for the plan search. What a
// prompt shares with lines before it counts as computed, from the length on that is worth it under
// every rule. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/sweep_schedule.h"
#include "scheduler/seen_beginnings.h"
#include "server/api/completion.h"
#include "server/batches/batch_input.h"

namespace spillway {

class WorkloadSample {
 public:
  // `context` outlives it. `shares_beginnings`: there is a prefix cache.
  WorkloadSample(const ApiContext& context, bool shares_beginnings);

  // Whether more lines would only take time.
  bool full() const;
  void add(const InputLine& line, uint64_t seed);

  // For `rows` lines like those that were added; empty: none of them was good.
  std::vector<RequestGroup> groups(int64_t rows) const;

 private:
  const ApiContext& context_;
  const bool shares_;
  SeenBeginnings seen_;
  std::vector<RequestGroup> sample_;
  int64_t lines_ = 0;
  size_t bytes_ = 0;
};

}  // namespace spillway
