#include "server/cli/batch/workload_sample.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "kernels/base/model_shape.h"
#include "scheduler/prefix_cache.h"
#include "server/batches/batch_line.h"
#include "server/cli/batch/workload_file.h"

namespace spillway {
namespace {

constexpr int64_t kSampledLines = 2000;
constexpr size_t kSampledBytes = size_t{4} << 20;
constexpr size_t kGroups = 32;

}  // namespace

WorkloadSample::WorkloadSample(const ApiContext& context, bool shares_beginnings)
    : context_(context), shares_(shares_beginnings && context.shape->layers_with_window() == 0) {}

bool WorkloadSample::full() const {
  return lines_ >= kSampledLines || bytes_ >= kSampledBytes;
}

void WorkloadSample::add(const InputLine& text, uint64_t seed) {
  ++lines_;
  bytes_ += text.text.size();
  const BatchLine line = read_batch_line(text, context_);
  if (line.error) return;
  const auto parsed = parse_batch_line(line, context_, seed);
  const auto* call = std::get_if<CompletionCall>(&parsed);
  if (call == nullptr) return;
  for (const Request& request : call->requests) {
    const auto prompt = static_cast<int64_t>(request.prompt.size());
    const int64_t blocks = shares_ ? PrefixCache::blocks_of(prompt) : 0;
    const int64_t before = seen_.seen(request.cache_salt, request.prompt, blocks);
    seen_.note(request.cache_salt, request.prompt, blocks);
    sample_.push_back({std::max<int64_t>(1, prompt), std::max<int64_t>(1, request.max_tokens), 1,
                       request.kv, before >= kBeginningBlocks ? before * kKvBlockRows : 0});
  }
}

std::vector<RequestGroup> WorkloadSample::groups(int64_t rows) const {
  const double rows_of_line =
      static_cast<double>(rows) / static_cast<double>(std::max<int64_t>(1, lines_));
  std::vector<RequestGroup> groups = few_groups(sample_, kGroups);
  for (RequestGroup& group : groups) {
    group.count =
        std::max<int64_t>(1, std::llround(static_cast<double>(group.count) * rows_of_line));
  }
  return groups;
}

}  // namespace spillway
