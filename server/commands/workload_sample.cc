#include "server/commands/workload_sample.h"

#include <algorithm>
#include <cmath>

namespace spillway {

void WorkloadSample::add(int64_t prompt_tokens, int64_t new_tokens) {
  requests_.push_back({std::max<int64_t>(1, prompt_tokens), std::max<int64_t>(1, new_tokens)});
}

std::vector<RequestGroup> WorkloadSample::groups(double scale, size_t most) const {
  std::vector<Lengths> sorted = requests_;
  std::sort(sorted.begin(), sorted.end(), [](const Lengths& a, const Lengths& b) {
    const int64_t all = a.prompt + a.more, other = b.prompt + b.more;
    return all != other ? all < other : a.prompt < b.prompt;
  });
  std::vector<RequestGroup> found;
  const size_t parts = std::min(most, sorted.size());
  for (size_t part = 0; part < parts; ++part) {
    const size_t begin = sorted.size() * part / parts, end = sorted.size() * (part + 1) / parts;
    RequestGroup group;
    for (size_t i = begin; i < end; ++i) {
      group.prompt_tokens += sorted[i].prompt;
      group.new_tokens += sorted[i].more;
    }
    const auto in_part = static_cast<int64_t>(end - begin);
    group.prompt_tokens = (group.prompt_tokens + in_part - 1) / in_part;
    group.new_tokens = (group.new_tokens + in_part - 1) / in_part;
    // Differences of one running count, so that roundings do not add up.
    const auto until = [&](size_t i) { return std::llround(static_cast<double>(i) * scale); };
    group.count = std::max<int64_t>(1, until(end) - until(begin));
    const bool same = !found.empty() && found.back().prompt_tokens == group.prompt_tokens &&
                      found.back().new_tokens == group.new_tokens;
    if (same) found.back().count += group.count;
    if (!same) found.push_back(group);
  }
  return found;
}

}  // namespace spillway
