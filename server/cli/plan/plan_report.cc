#include "server/cli/plan/plan_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/base/units.h"
#include "policy/hardware_json.h"
#include "server/cli/bench/bench_report.h"
#include "server/cli/common/console.h"
#include "server/cli/common/report_json.h"
#include "server/cli/flags/plan_file.h"
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

// What decode takes, a sweep: of those with most sequences.
const PlannedSweeps* decode_sweep(const PlanReport& report) {
  const PlannedSweeps* most = nullptr;
  for (const PlannedSweeps& sweeps : report.choice.sweeps) {
    if (sweeps.prompts > 0) continue;
    if (most == nullptr || sweeps.count * sweeps.decoding > most->count * most->decoding) {
      most = &sweeps;
    }
  }
  return most;
}

const PlannedSweeps* prefill_sweep(const PlanReport& report) {
  const PlannedSweeps* most = nullptr;
  for (const PlannedSweeps& sweeps : report.choice.sweeps) {
    if (most == nullptr || sweeps.prompt_tokens > most->prompt_tokens) most = &sweeps;
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
  const auto tokens = prefill == nullptr ? 0 : prefill->prompt_tokens;
  const auto sequences = decode == nullptr ? 0 : decode->decoding;
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
    text += "device " + used(device + plan.device_staging_bytes, plan.device_budget_bytes) +
            ", host " + used(host + plan.staging_bytes, plan.budget_bytes);
  } else {
    text += "host " + used(device + host + plan.staging_bytes, plan.budget_bytes);
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

// Of a file: its requests by length.
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

json plan_object(const PlanReport& report) {
  const EngineFlags& flags = report.choice.flags;
  const Plan& plan = *report.choice.plan;
  json object = {
      {"version", kPlanVersion},
      {"model", report.choice.plan->model_name},
      {"device", report.choice.plan->discrete ? "cuda" : "cpu"},
      {"weights", flags.weights ? *flags.weights : percent_by_tier(plan.weights)},
      {"kv", flags.kv ? *flags.kv : percent_by_tier(plan.kv)},
      {"activations", flags.activations ? *flags.activations : percent_by_tier(plan.activations)},
      {"block", plan.block_sequences},
      {"format", dtype_name(plan.format)},
      {"kv_format", dtype_name(plan.kv_format)}};
  if (plan.q4_in_int8) object["q4_compute"] = "int8";
  if (flags.micro_batch) object["micro_batch"] = *flags.micro_batch;
  if (report.choice.plan->discrete) {
    object["attention"] = plan.host_attention ? "host" : "device";
  }
  const auto budget = [&](const char* name, const std::optional<uint64_t>& bytes) {
    if (bytes) object[name] = std::to_string(*bytes);
  };
  budget("device_memory", flags.device_memory_bytes);
  budget("host_memory", flags.host_memory_bytes);
  budget("disk_memory", flags.disk_memory_bytes);
  json rule;
  add_kv_rule(plan.kv_rule, &rule);
  object["kv_rule"] = rule["kv_rule"];
  // Others have no budgets, and the flags refuse them.
  const KvRuleKind kind = plan.kv_rule.kind;
  if (kind == KvRuleKind::kH2o) object["kv_heavy"] = rule["kv_heavy"];
  if (kind == KvRuleKind::kWindow) object["kv_sink"] = rule["kv_sink"];
  if (kind != KvRuleKind::kFull) {
    object["kv_recent"] = rule["kv_recent"];
    object["kv_ratio_of"] = rule["kv_ratio_of"];
  }
  return object;
}

}  // namespace

std::string plan_flags_text(const EngineFlags& flags, const Plan& plan) {
  std::string text = "--block " + std::to_string(plan.block_sequences);
  const auto add = [&](const char* name, const std::optional<TierPercent>& percent) {
    if (percent) text += std::string(" --") + name + " " + percent_text(*percent);
  };
  add("weights", flags.weights);
  add("kv", flags.kv);
  add("activations", flags.activations);
  if (flags.micro_batch) text += " --micro-batch " + std::to_string(*flags.micro_batch);
  const auto size = [&](const char* name, const std::optional<uint64_t>& bytes) {
    if (bytes) text += std::string(" --") + name + " " + std::to_string(*bytes);
  };
  size("device-memory", flags.device_memory_bytes);
  size("host-memory", flags.host_memory_bytes);
  size("disk-memory", flags.disk_memory_bytes);
  // Which the engine would choose by its profile
  if (plan.device_budget_bytes > 0) {
    text += plan.host_attention ? " --attention host" : " --attention device";
  }
  if (flags.no_overlap) text += " --no-overlap";
  if (flags.format) text += " --format " + std::string(dtype_name(*flags.format));
  if (flags.kv_format) text += " --kv-format " + std::string(dtype_name(*flags.kv_format));
  if (plan.q4_in_int8) text += " --q4-compute int8";
  if (plan.kv_rule.kind != KvRuleKind::kFull) {
    text += " --kv-rule " + std::string(kv_rule_name(plan.kv_rule.kind));
    if (plan.kv_rule.kind == KvRuleKind::kH2o) {
      text += " --kv-heavy " + to_string(plan.kv_rule.heavy);
    }
    text += " --kv-recent " + to_string(plan.kv_rule.recent);
    if (plan.kv_rule.sink > 0) text += " --kv-sink " + std::to_string(plan.kv_rule.sink);
    if (plan.kv_rule.ratio_of_prompt) text += " --kv-ratio-of prompt";
  }
  return text;
}

std::string workload_text(const PlanReport& report) {
  if (!report.flags.workload.empty()) return file_workload_text(report);
  return std::to_string(report.flags.prompt_tokens) + " + " +
         std::to_string(report.flags.new_tokens) + " tokens";
}

std::string plan_text(const PlanReport& report) {
  const CostedChoice& choice = report.choice;
  const Prediction& found = choice.prediction;
  std::string text = text_line(
      "%s on %s, %s: %s tokens/s predicted (prefill %s, decode %s; limited by %s)",
      choice.plan->model_name.c_str(), report.hardware.name.c_str(), workload_text(report).c_str(),
      format_rate(found.tokens_per_second()).c_str(), format_seconds(found.prefill_seconds).c_str(),
      format_seconds(found.decode_seconds).c_str(),
      std::string(resource_name(found.bottleneck)).c_str());
  text += latency_text(report);
  if (report.flags.explain) text += explanation(report);
  text += text_line("best of %lld plans; to carry it out:", static_cast<long long>(report.tried));
  return text + "  " + plan_flags_text(choice.flags, *choice.plan) + "\n";
}

std::string plan_json(const PlanReport& report) {
  const Prediction& found = report.choice.prediction;
  const Plan& plan = *report.choice.plan;
  json resources = json::object();
  for (size_t r = 0; r < kResources; ++r) {
    resources[std::string(resource_name(static_cast<Resource>(r)))] = found.busy[r];
  }
  json object = {{"plan", plan_object(report)},
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
                 {"flags", plan_flags_text(report.choice.flags, plan)},
                 {"cost_model", report.flags.cost_model},
                 {"hardware", json::parse(hardware_profile_json(report.hardware))}};
  add_workload(report, &object);
  add_frontier(report, &object);
  return object.dump(2, ' ', false, json::error_handler_t::replace);
}

std::string plan_file_text(const PlanReport& report) {
  return plan_object(report).dump(2) + "\n";
}

}  // namespace spillway
