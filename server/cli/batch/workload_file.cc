#include "server/cli/batch/workload_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_reader.h"
#include "server/api/json_input.h"
#include "server/batches/batch_line.h"

namespace spillway {

namespace {

constexpr int64_t kTokensMax = int64_t{1} << 20;  // Limit of --prompt-tokens and --new-tokens, too

int64_t tokens_of(const RequestGroup& group) {
  return group.prompt_tokens + group.new_tokens;
}

}  // namespace

Status check_lengths(int64_t prompt_tokens, int64_t new_tokens, const ModelShape& shape) {
  if (prompt_tokens + new_tokens <= shape.positions) return {};
  return invalid_argument("the model has " + std::to_string(shape.positions) +
                          " positions; --prompt-tokens + --new-tokens is " +
                          std::to_string(prompt_tokens + new_tokens) + "; lower one of them");
}

Status Workload::add_group(const RequestGroup& group) {
  const int64_t positions = context_.shape->positions;
  if (kv_positions(group.prompt_tokens, group.new_tokens) > positions) {
    return invalid_argument(std::to_string(group.prompt_tokens) + " + " +
                            std::to_string(group.new_tokens) +
                            " tokens are more than the model's " + std::to_string(positions) +
                            " positions hold; give fewer of either");
  }
  if (group.count > kWorkloadRequestsMax - requests_) {
    return invalid_argument("more than " + std::to_string(kWorkloadRequestsMax) +
                            " requests in all; a plan for a part of them is the same");
  }
  requests_ += group.count;
  const auto [place, is_new] =
      place_of_.try_emplace({group.prompt_tokens, group.new_tokens, group.kv}, groups_.size());
  if (is_new) {
    groups_.push_back(group);
  } else {
    groups_[place->second].count += group.count;
  }
  return {};
}

Status Workload::add(const InputLine& line) {
  const auto refusal = [](const ApiError& error) { return invalid_argument(error.message); };
  if (!line.too_long) {
    auto parsed = parse_body(line.text, context_.limits.json_values_max);
    if (const auto* error = std::get_if<ApiError>(&parsed)) return refusal(*error);
    const auto& object = std::get<nlohmann::json>(parsed);
    if (object.contains("prompt_tokens") || object.contains("new_tokens")) {
      JsonReader reader(object, "the line");
      reader.only({"prompt_tokens", "new_tokens", "count"});
      const int64_t prompt = reader.integer("prompt_tokens", 1, kTokensMax);
      const int64_t more = reader.integer("new_tokens", 1, kTokensMax);
      const int64_t count = reader.integer_or("count", 1, kWorkloadRequestsMax, 1);
      SPILLWAY_RETURN_IF_ERROR(reader.status());
      return add_group({prompt, more, count});
    }
  }
  const BatchLine batch = read_batch_line(line, context_);
  if (batch.error) return refusal(*batch.error);
  const ApiResult<CompletionCall> call = parse_batch_line(batch, context_, 0);
  if (const auto* error = std::get_if<ApiError>(&call)) return refusal(*error);
  for (const Request& request : std::get<CompletionCall>(call).requests) {
    // A prompt that is only scored counts as one generated token.
    SPILLWAY_RETURN_IF_ERROR(add_group({static_cast<int64_t>(request.prompt.size()),
                                        std::max<int64_t>(1, request.max_tokens), 1, request.kv}));
  }
  return {};
}

Result<std::vector<RequestGroup>> read_workload(const std::string& path,
                                                const ApiContext& context) {
  SPILLWAY_ASSIGN_OR_RETURN(BatchInput input, BatchInput::open(path));
  Workload workload(context);
  for (InputLine line;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, input.next(&line));
    if (!found) break;
    SPILLWAY_RETURN_IF_ERROR(workload.add(line).at("line " + std::to_string(line.number)).at(path));
  }
  if (workload.groups().empty()) return invalid_argument(path + " has no request in it");
  return few_groups(workload.groups(), kWorkloadGroupsMax);
}

std::vector<RequestGroup> few_groups(std::vector<RequestGroup> groups, size_t most) {
  if (groups.size() <= most) return groups;
  std::sort(groups.begin(), groups.end(), [](const RequestGroup& a, const RequestGroup& b) {
    return std::tuple(a.kv.kind, tokens_of(a), a.prompt_tokens, a.shared_tokens) <
           std::tuple(b.kv.kind, tokens_of(b), b.prompt_tokens, b.shared_tokens);
  });
  int64_t requests = 0;
  for (const RequestGroup& group : groups) requests += group.count;
  std::vector<RequestGroup> found;
  const auto parts = static_cast<int64_t>(most);
  int64_t before = 0;
  for (size_t next = 0; next < groups.size();) {
    // Ends where the next part of the requests begins, rounded up, so that each has some.
    const int64_t until = ((before * parts / requests + 1) * requests + parts - 1) / parts;
    RequestGroup sum{0, 0, 0, {}, 0}, longest = groups[next];
    for (; next < groups.size() && before < until; ++next) {
      const RequestGroup& group = groups[next];
      sum.prompt_tokens += group.count * group.prompt_tokens;
      sum.new_tokens += group.count * group.new_tokens;
      sum.shared_tokens += group.count * group.shared_tokens;
      sum.count += group.count;
      before += group.count;
      if (tokens_of(group) > tokens_of(longest)) longest = group;
    }
    const auto mean = [&](int64_t tokens) { return (tokens + sum.count - 1) / sum.count; };
    const int64_t more = mean(sum.new_tokens);
    const int64_t most_prompt = tokens_of(longest) - more;
    const int64_t prompt = std::min(mean(sum.prompt_tokens), most_prompt);
    const int64_t shared = std::min(sum.shared_tokens / sum.count, prompt - 1);
    found.push_back({prompt, more, sum.count, longest.kv, shared});
  }
  return found;
}

}  // namespace spillway
