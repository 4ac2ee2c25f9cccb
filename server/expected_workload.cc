#include "server/expected_workload.h"

#include <algorithm>

namespace spillway {

void cut_workload(const ModelShape& shape, std::vector<RequestGroup>* workload) {
  for (RequestGroup& group : *workload) {
    group.prompt_tokens = std::clamp<int64_t>(group.prompt_tokens, 1, shape.positions - 1);
    group.new_tokens =
        std::clamp<int64_t>(group.new_tokens, 1, shape.positions - group.prompt_tokens);
  }
}

std::string workload_text(std::span<const RequestGroup> workload) {
  int64_t count = 0, prompt = 0, more = 0;
  bool alike = true;
  for (const RequestGroup& group : workload) {
    const int64_t weight = std::max<int64_t>(1, group.count);
    count += group.count;
    prompt += weight * group.prompt_tokens;
    more += weight * group.new_tokens;
    alike = alike && group.prompt_tokens == workload[0].prompt_tokens &&
            group.new_tokens == workload[0].new_tokens;
  }
  const int64_t all = std::max<int64_t>(1, count);
  return (count == 0   ? std::string("full blocks of sequences of ")
          : count == 1 ? std::string("a sequence of ")
                       : std::to_string(count) + " sequences of ") +
         std::to_string(prompt / all) + " + " + std::to_string(more / all) + " tokens" +
         (alike ? "" : " in the mean");
}

}  // namespace spillway
