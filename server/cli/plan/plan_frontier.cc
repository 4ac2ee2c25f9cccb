#include "server/cli/plan/plan_frontier.h"

#include <nlohmann/json.hpp>

#include "kernels/base/units.h"
#include "scheduler/planning/plan_json.h"
#include "server/cli/common/console.h"

namespace spillway {

namespace {

using nlohmann::json;

std::string formats_text(const CostedChoice& choice) {
  const Plan& plan = *choice.plan;
  return std::string(format_name(plan.format)) + "/" + std::string(format_name(plan.kv_format()));
}

std::string limit_text(const CostedChoice& choice) {
  return std::string(resource_name(choice.prediction.bottleneck));
}

std::string frontier_line(const CostedChoice& choice) {
  const Plan& plan = *choice.plan;
  return text_line(
      "  %6lld  %-10s %-10s %-11s %-9s %13s %10s  %s",
      static_cast<long long>(plan.block_sequences()), percent_text(plan.percent.weights).c_str(),
      percent_text(plan.percent.kv).c_str(), percent_text(plan.percent.activations).c_str(),
      formats_text(choice).c_str(), format_seconds(choice.latency_seconds).c_str(),
      format_rate(choice.prediction.tokens_per_second()).c_str(), limit_text(choice).c_str());
}

json frontier_object(const CostedChoice& choice) {
  const Plan& plan = *choice.plan;
  json object = {{"block", plan.block_sequences()},
                 {"weights", plan.percent.weights},
                 {"kv", plan.percent.kv},
                 {"activations", plan.percent.activations},
                 {"format", format_name(plan.format)},
                 {"kv_format", format_name(plan.kv_format())},
                 {"latency_seconds", choice.latency_seconds},
                 {"tokens_per_second", choice.prediction.tokens_per_second()},
                 {"bottleneck", resource_name(choice.prediction.bottleneck)},
                 {"flags", plan_flags_text(plan)}};
  if (choice.flags.micro_batch) object["micro_batch"] = *choice.flags.micro_batch;
  return object;
}

}  // namespace

std::string latency_text(const PlanReport& report) {
  std::string text;
  if (report.flags.latency_seconds > 0) {
    text += text_line("latency of a full block: %s, and %s at most was asked for",
                      format_seconds(report.choice.latency_seconds).c_str(),
                      format_seconds(report.flags.latency_seconds).c_str());
  }
  if (report.frontier.empty()) return text;
  text += text_line("%lld plans that none beats in both latency and throughput:",
                    static_cast<long long>(report.frontier.size()));
  text += text_line("  %6s  %-10s %-10s %-11s %-9s %13s %10s  %s", "block", "weights", "KV",
                    "activations", "format", "latency", "tokens/s", "limited by");
  for (const CostedChoice& choice : report.frontier) text += frontier_line(choice);
  return text +
         "  (per cent on device, host, disk; format of weights/KV; latency: a full block, "
         "from its start to its last token)\n";
}

void add_frontier(const PlanReport& report, json* object) {
  if (report.frontier.empty()) return;
  json& frontier = (*object)["frontier"] = json::array();
  for (const CostedChoice& choice : report.frontier) frontier.push_back(frontier_object(choice));
}

}  // namespace spillway
