// Workload files: any lines become groups of lengths that the model holds, or are refused; and few
// groups of them are never shorter in all nor longer than the longest.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/base/check.h"
#include "server/cli/batch/workload_file.h"
#include "tests/support/tiny_shape.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const ModelShape shape = test::make_shape({});
  ApiContext context;
  context.shape = &shape;
  context.model_names = {"tiny"};
  Workload workload(context);
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  for (int64_t number = 1; !rest.empty() && number < 100; ++number) {
    const std::string_view text = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), text.size() + 1));
    const Status added = workload.add({number, text, false});
    const bool fine = added.ok() || added.code() == Code::kInvalidArgument;
    SPILLWAY_CHECK(fine);
  }
  int64_t requests = 0, longest = 0;
  for (const RequestGroup& group : workload.groups()) {
    const bool fine = group.count > 0 && group.prompt_tokens > 0 && group.new_tokens > 0 &&
                      kv_positions(group.prompt_tokens, group.new_tokens) <= shape.positions;
    SPILLWAY_CHECK(fine);
    requests += group.count;
    longest = std::max(longest, group.prompt_tokens + group.new_tokens);
  }
  SPILLWAY_CHECK(requests <= kWorkloadRequestsMax);
  const std::vector<RequestGroup> few = few_groups(workload.groups(), 4);
  SPILLWAY_CHECK(few.size() <= 4);
  for (const RequestGroup& group : few) {
    SPILLWAY_CHECK(group.prompt_tokens + group.new_tokens <= longest);
    requests -= group.count;
  }
  SPILLWAY_CHECK(requests == 0);
  return 0;
}
