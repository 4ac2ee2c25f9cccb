#include "server/commands/workload_file.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "policy/json_reader.h"
#include "server/api/json_input.h"
#include "server/commands/batch_line.h"

namespace spillway {

namespace {

constexpr int64_t kTokensMax = int64_t{1} << 20;  // As the flags --prompt-tokens and --new-tokens

// The smallest step^k that is not below `length`, or `longest`.
int64_t rounded_up(int64_t length, double step, int64_t longest) {
  for (double size = 1; size < static_cast<double>(longest); size *= step) {
    const auto whole = static_cast<int64_t>(std::ceil(size));
    if (whole >= length) return std::min(whole, longest);
  }
  return longest;
}

// Adds to the group of the same lengths, or at the end.
void merge(const RequestGroup& group, std::vector<RequestGroup>* groups,
           std::map<std::pair<int64_t, int64_t>, size_t>* by_length) {
  const auto [place, is_new] =
      by_length->try_emplace({group.prompt_tokens, group.new_tokens}, groups->size());
  if (is_new) {
    groups->push_back(group);
  } else {
    (*groups)[place->second].count += group.count;
  }
}

}  // namespace

Status Workload::add_group(int64_t prompt_tokens, int64_t new_tokens, int64_t count) {
  const int64_t positions = context_.shape->positions;
  if (kv_positions(prompt_tokens, new_tokens) > positions) {
    return invalid_argument(std::to_string(prompt_tokens) + " + " + std::to_string(new_tokens) +
                            " tokens are more than the model's " + std::to_string(positions) +
                            " positions hold");
  }
  if (count > kWorkloadRequestsMax - requests_) {
    return invalid_argument("more than " + std::to_string(kWorkloadRequestsMax) +
                            " requests in all; a plan for a part of them is the same");
  }
  requests_ += count;
  merge({prompt_tokens, new_tokens, count}, &groups_, &by_length_);
  return {};
}

Status Workload::add(const InputLine& line) {
  const auto refusal = [](const ApiError& error) { return invalid_argument(error.message); };
  if (!line.too_long) {
    auto parsed = parse_json_object(line.text, context_.limits.json_values_max);
    if (const auto* error = std::get_if<ApiError>(&parsed)) return refusal(*error);
    const auto& object = std::get<nlohmann::json>(parsed);
    if (object.contains("prompt_tokens") || object.contains("new_tokens")) {
      JsonReader reader(object, "the line");
      reader.only({"prompt_tokens", "new_tokens", "count"});
      const int64_t prompt = reader.integer("prompt_tokens", 1, kTokensMax);
      const int64_t more = reader.integer("new_tokens", 1, kTokensMax);
      const int64_t count = reader.integer_or("count", 1, kWorkloadRequestsMax, 1);
      SPILLWAY_RETURN_IF_ERROR(reader.status());
      return add_group(prompt, more, count);
    }
  }
  const BatchLine batch = read_batch_line(line, context_);
  if (batch.error) return refusal(*batch.error);
  const ApiResult<CompletionCall> call = parse_batch_line(batch, context_, 0);
  if (const auto* error = std::get_if<ApiError>(&call)) return refusal(*error);
  for (const Request& request : std::get<CompletionCall>(call).requests) {
    // A prompt that is only scored gives a token's worth of work.
    SPILLWAY_RETURN_IF_ERROR(add_group(static_cast<int64_t>(request.prompt.size()),
                                       std::max<int64_t>(1, request.max_tokens), 1));
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
  SPILLWAY_CHECK(most >= 4);
  int64_t prompt_longest = 1, new_longest = 1, both_longest = 1;
  for (const RequestGroup& group : groups) {
    prompt_longest = std::max(prompt_longest, group.prompt_tokens);
    new_longest = std::max(new_longest, group.new_tokens);
    both_longest = std::max(both_longest, group.prompt_tokens + group.new_tokens);
  }
  const std::vector<RequestGroup> exact = groups;
  // In the end a length is 1 or the longest.
  for (double step = 1.02; groups.size() > most; step = 1 + 1.5 * (step - 1)) {
    groups.clear();
    std::map<std::pair<int64_t, int64_t>, size_t> by_length;
    for (RequestGroup group : exact) {
      group.prompt_tokens = rounded_up(group.prompt_tokens, step, prompt_longest);
      group.new_tokens = rounded_up(group.new_tokens, step, new_longest);
      group.prompt_tokens = std::min(group.prompt_tokens, both_longest - group.new_tokens);
      merge(group, &groups, &by_length);
    }
  }
  return groups;
}

}  // namespace spillway
