#include "server/cli/plan/plan_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/base/units.h"
#include "policy/hardware_json.h"
#include "scheduler/planning/plan_json.h"
#include "server/cli/common/console.h"
#include "server/cli/plan/plan_frontier.h"

namespace spillway {

namespace {

using nlohmann::json;

uint64_t sum(const TierBytes& bytes) {
  return bytes.device + bytes.host + bytes.disk;
}

std::string part(uint64_t bytes, const TierBytes& of) {
  if (sum(of) == 0) return "-";
  char text[64];
  std::snprintf(text, sizeof(text), "%s (%.0f %%)", format_bytes(bytes).c_str(),
                100 * static_cast<double>(bytes) / static_cast<double>(sum(of)));
  return text;
}

std::string tier_line(const char* name, const TierBytes& bytes) {
  return text_line("  %-12s %22s %22s %22s", name, part(bytes.device, bytes).c_str(),
                   part(bytes.host, bytes).c_str(), part(bytes.disk, bytes).c_str());
}

// The decode sweep with most sequences.
const PlannedSweeps* decode_sweep(const PlanReport& report) {
  const PlannedSweeps* most = nullptr;
  for (const PlannedSweeps& sweeps : report.choice.sweeps) {
    if (sweeps.work.prompts > 0) continue;
    if (most == nullptr ||
        sweeps.count * sweeps.work.decoding > most->count * most->work.decoding) {
      most = &sweeps;
    }
  }
  return most;
}

const PlannedSweeps* prefill_sweep(const PlanReport& report) {
  const PlannedSweeps* most = nullptr;
  for (const PlannedSweeps& sweeps : report.choice.sweeps) {
    if (most == nullptr || sweeps.work.prompt_tokens > most->work.prompt_tokens) most = &sweeps;
  }
  return most;
}

double longest(const ResourceSeconds& cost) {
  return *std::max_element(cost.begin(), cost.end());
}

std::string sweeps_text(const PlanReport& report, const MachineRates& rates) {
  const CostedPlan& plan = report.choice.costed;
  const PlannedSweeps *decode = decode_sweep(report), *prefill = prefill_sweep(report);
  ResourceSeconds of_decode{}, of_prefill{};
  if (decode != nullptr) of_decode = sweep_cost(plan, rates, *decode);
  if (prefill != nullptr) of_prefill = sweep_cost(plan, rates, *prefill);
  std::string text = text_line("a sweep's seconds by resource      prefill       decode");
  for (size_t r = 0; r < kResources; ++r) {
    if (of_decode[r] == 0 && of_prefill[r] == 0) continue;
    const auto mark = [&](const ResourceSeconds& cost) {
      return cost[r] > 0 && cost[r] == longest(cost) ? "*" : " ";
    };
    text += text_line("  %-24s %12.3f%s %12.3f%s",
                      std::string(resource_name(static_cast<Resource>(r))).c_str(), of_prefill[r],
                      mark(of_prefill), of_decode[r], mark(of_decode));
  }
  const auto tokens = prefill == nullptr ? 0 : prefill->work.prompt_tokens;
  const auto sequences = decode == nullptr ? 0 : decode->work.decoding;
  return text + text_line("  (prefill: %lld prompt tokens; decode: %lld sequences; * the slowest)",
                          static_cast<long long>(tokens), static_cast<long long>(sequences));
}

std::string relief_text(const PlanReport& report, const MachineRates& rates) {
  const CostedChoice& choice = report.choice;
  const Resource wall = choice.prediction.bottleneck;
  const Prediction without = predict(choice.costed, rates, choice.sweeps, wall);
  return text_line("bottleneck: %s; without any limit of it %s tokens/s, then %s is the limit",
                   std::string(resource_name(wall)).c_str(),
                   format_rate(without.tokens_per_second()).c_str(),
                   std::string(resource_name(without.bottleneck)).c_str());
}

std::string budget_text(const PlanReport& report) {
  const Plan& plan = *report.choice.plan;
  const bool own = plan.device_budget_bytes > 0;
  const auto used = [](uint64_t bytes, uint64_t budget) {
    return format_bytes(bytes) + " of " + format_bytes(budget);
  };
  const uint64_t device = plan.weights.device + plan.kv.device + plan.activations.device;
  const uint64_t host = plan.weights.host + plan.kv.host + plan.activations.host;
  std::string text = "memory taken: ";
  if (own) {
    text += "device " + used(device + plan.placement.device_rings.sum(), plan.device_budget_bytes) +
            ", host " + used(host + plan.placement.host_rings.sum(), plan.budget_bytes);
  } else {
    text += "host " + used(device + host + plan.placement.host_rings.sum(), plan.budget_bytes);
  }
  const uint64_t disk = plan.kv.disk + plan.activations.disk;
  if (const auto& budget = report.choice.flags.disk_memory_bytes) {
    text += ", disk " + used(disk, *budget);
  }
  return text + ", besides the program itself\n";
}

std::string explanation(const PlanReport& report) {
  const CostedChoice& choice = report.choice;
  const Plan& plan = *choice.plan;
  const Result<MachineRates> rates = MachineRates::of(report.hardware, choice.costed);
  std::string text =
      text_line(
          "what lives where                device                   host                   disk") +
      tier_line("weights", plan.weights) + tier_line("KV", plan.kv) +
      tier_line("activations", plan.activations) + budget_text(report);
  if (rates.ok()) {
    text += sweeps_text(report, rates.value());
    text += relief_text(report, rates.value());
  }
  return text;
}

std::string file_workload_text(const PlanReport& report) {
  int64_t requests = 0, prompt_longest = 0, new_longest = 0;
  double prompts = 0, more = 0;
  for (const RequestGroup& group : report.workload) {
    requests += group.count;
    prompts += static_cast<double>(group.count * group.prompt_tokens);
    more += static_cast<double>(group.count * group.new_tokens);
    prompt_longest = std::max(prompt_longest, group.prompt_tokens);
    new_longest = std::max(new_longest, group.new_tokens);
  }
  std::string text =
      text_line("%lld requests (%.0f + %.0f tokens in the mean, %lld and %lld at most)",
                static_cast<long long>(requests), prompts / static_cast<double>(requests),
                more / static_cast<double>(requests), static_cast<long long>(prompt_longest),
                static_cast<long long>(new_longest));
  text.pop_back();
  return text;
}

// Adds the requests of a workload file, by length.
void add_workload(const PlanReport& report, json* object) {
  if (report.flags.workload.empty()) {
    (*object)["prompt_tokens"] = report.flags.prompt_tokens;
    (*object)["new_tokens"] = report.flags.new_tokens;
    return;
  }
  json& groups = (*object)["workload"] = json::array();
  for (const RequestGroup& group : report.workload) {
    json one = {{"prompt_tokens", group.prompt_tokens},
                {"new_tokens", group.new_tokens},
                {"count", group.count}};
    if (group.kv.kind) one["kv_rule"] = kv_rule_name(*group.kv.kind);
    groups.push_back(std::move(one));
  }
}

json tier_object(const TierBytes& bytes) {
  return {{"device", bytes.device}, {"host", bytes.host}, {"disk", bytes.disk}};
}

}  // namespace

std::string workload_text(const PlanReport& report) {
  if (!report.flags.workload.empty()) return file_workload_text(report);
  return std::to_string(report.flags.prompt_tokens) + " + " +
         std::to_string(report.flags.new_tokens) + " tokens";
}

std::string plan_text(const PlanReport& report) {
  const CostedChoice& choice = report.choice;
  const Prediction& found = choice.prediction;
  const int64_t ranks = choice.plan->shape.ranks;
  std::string text = text_line(
      "%s on %s%s, %s: %s tokens/s predicted (prefill %s, decode %s; limited by %s)",
      choice.plan->model_name.c_str(), report.hardware.name.c_str(),
      ranks > 1 ? (" by " + std::to_string(ranks) + " ranks").c_str() : "",
      workload_text(report).c_str(), format_rate(found.tokens_per_second()).c_str(),
      format_seconds(found.prefill_seconds).c_str(), format_seconds(found.decode_seconds).c_str(),
      std::string(resource_name(found.bottleneck)).c_str());
  text += latency_text(report);
  if (report.flags.explain) text += explanation(report);
  text += text_line("best of %lld plans; to carry it out:", static_cast<long long>(report.tried));
  return text + "  " + plan_flags_text(*choice.plan) + "\n";
}

std::string plan_report_json(const PlanReport& report) {
  const Prediction& found = report.choice.prediction;
  const Plan& plan = *report.choice.plan;
  json resources = json::object();
  for (size_t r = 0; r < kResources; ++r) {
    resources[std::string(resource_name(static_cast<Resource>(r)))] = found.busy[r];
  }
  json object = {{"plan", plan_json(plan)},
                 {"predicted",
                  {{"prefill_seconds", found.prefill_seconds},
                   {"decode_seconds", found.decode_seconds},
                   {"total_seconds", found.seconds()},
                   {"tokens_per_second", found.tokens_per_second()},
                   {"latency_seconds", report.choice.latency_seconds},
                   {"generated_tokens", found.generated},
                   {"bottleneck", resource_name(found.bottleneck)},
                   {"bytes_by_tier",
                    {{"weights", tier_object(plan.weights)},
                     {"kv", tier_object(plan.kv)},
                     {"activations", tier_object(plan.activations)}}},
                   {"resources", resources}}},
                 {"flags", plan_flags_text(plan)},
                 {"cost_model", report.flags.cost_model},
                 {"hardware", json::parse(hardware_profile_json(report.hardware))}};
  add_workload(report, &object);
  add_frontier(report, &object);
  return object.dump(2, ' ', false, json::error_handler_t::replace);
}

std::string plan_file_text(const PlanReport& report) {
  return plan_json(*report.choice.plan).dump(2) + "\n";
}

}  // namespace spillway
