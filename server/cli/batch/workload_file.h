// Reads the workload to plan for from a file: the lengths of a batch's lines, or lengths
// themselves.
//
// JSON Lines, freely mixed: {"prompt_tokens": 300, "new_tokens": 40, "count": 25} (count defaults
// to 1), or a line of `spillway batch`, whose max_tokens count as generated. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/base/status.h"
#include "policy/sweep_schedule.h"
#include "server/api/completion.h"
#include "server/batches/batch_input.h"

namespace spillway {

constexpr size_t kWorkloadGroupsMax = 64;
constexpr int64_t kWorkloadRequestsMax = int64_t{1} << 24;

class Workload {
 public:
  // `context` outlives this. Without a tokenizer prompts of text are refused.
  explicit Workload(const ApiContext& context) : context_(context) {}

  // kInvalidArgument: the line is wrong, too long for the model, or one request too many.
  Status add(const InputLine& line);

  // Requests grouped by equal lengths and KV rule, in order of first appearance.
  const std::vector<RequestGroup>& groups() const { return groups_; }

 private:
  Status add_group(const RequestGroup& group);

  const ApiContext& context_;
  std::vector<RequestGroup> groups_;
  std::map<std::tuple<int64_t, int64_t, KvRuleChoice>, size_t> place_of_;
  int64_t requests_ = 0;
};

// The file's groups, kWorkloadGroupsMax at most. Errors name file and line; kInvalidArgument also
// when there is no request in it. Blocks for the disk.
Result<std::vector<RequestGroup>> read_workload(const std::string& path, const ApiContext& context);

// Checks the lengths given to bench and plan: kInvalidArgument when prompt and new tokens together
// exceed the model's positions.
Status check_lengths(int64_t prompt_tokens, int64_t new_tokens, const ModelShape& shape);

// At most `most` groups. If there are more, requests of each kind of KV rule are sorted by length
// and divided into equal parts, and each part becomes a group with its mean lengths, rounded up:
// count, tokens and tail stay, and the KV rule is that of the part's longest. REQUIRES: most >= 1.
std::vector<RequestGroup> few_groups(std::vector<RequestGroup> groups, size_t most);

}  // namespace spillway
