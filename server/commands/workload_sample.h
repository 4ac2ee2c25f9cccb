// What a run is going to be, from some of its requests: groups of like lengths for the policy
// search (policy/sweep_schedule.h), mean and tail instead of one length. Values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/sweep_schedule.h"

namespace spillway {

class WorkloadSample {
 public:
  // A request's prompt and the most tokens it may generate; one that generates none counts for one.
  void add(int64_t prompt_tokens, int64_t new_tokens);

  // At most `most` groups, shortest first, each with the mean lengths of an equal part of the
  // requests, rounded up; `scale`: requests in all for each that was added. Empty: none was added.
  std::vector<RequestGroup> groups(double scale, size_t most = 16) const;

 private:
  struct Lengths {
    int64_t prompt, more;
  };
  std::vector<Lengths> requests_;
};

}  // namespace spillway
