#include "scheduler/planning/plan_json.h"

#include <nlohmann/json.hpp>

namespace spillway {

namespace {

using nlohmann::json;

json json_of(const KvAmount& amount) {
  return amount.ratio > 0 ? json(amount.ratio) : json(amount.rows);
}

json json_of(const KvKeep& keep) {
  return keep.prompt ? json("prompt") : json_of(keep.amount);
}

// Whether a rule's protected positions have the older name, kv_sink.
bool has_sink(const KvRule& rule) {
  return rule.kind == KvRuleKind::kWindow && !rule.keep.prompt && rule.keep.amount.ratio <= 0;
}

// The flag of a member's name.
std::string flag_of(std::string member) {
  for (char& c : member) c = c == '_' ? '-' : c;
  return "--" + member;
}

std::string value_text(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  return percent_text(value.get<TierPercent>());
}

}  // namespace

void add_kv_rule(const KvRule& rule, json* object) {
  (*object)["kv_rule"] = kv_rule_name(rule.kind);
  (*object)["kv_heavy"] = json_of(rule.heavy);
  (*object)["kv_recent"] = json_of(rule.recent);
  (*object)["kv_sink"] = has_sink(rule) ? rule.keep.amount.rows : 0;
  if (!has_sink(rule) && !rule.keep.none()) (*object)["kv_keep"] = json_of(rule.keep);
  if (rule.kind == KvRuleKind::kSnap) (*object)["kv_snap"] = kv_snap_name(rule.snap);
  (*object)["kv_ratio_of"] = rule.ratio_of_prompt ? "prompt" : "total";
}

json plan_json(const Plan& plan) {
  json object = {{"version", kPlanVersion},
                 {"model", plan.model_name},
                 {"device", plan.discrete ? "cuda" : "cpu"},
                 {"weights", plan.percent.weights},
                 {"kv", plan.percent.kv},
                 {"activations", plan.percent.activations},
                 {"block", plan.block_sequences()},
                 // No flag names a file's own formats: null lets the checkpoint say them again.
                 {"format", plan.in_named_format ? json(format_name(plan.format)) : json()},
                 {"kv_format", format_name(plan.kv_format())}};
  if (plan.micro_batch_sequences() > 0) object["micro_batch"] = plan.micro_batch_sequences();
  if (plan.asked.prefill_tokens) object["prefill_tokens"] = *plan.asked.prefill_tokens;
  if (plan.prefill_target() > 0) object["prefill_target"] = plan.prefill_target();
  if (plan.in_int8) {
    object["quantized_compute"] = "int8";
  } else if (!plan.discrete && takes_int8(plan.format)) {
    object["quantized_compute"] = "float";
  }
  if (plan.discrete) object["attention"] = plan.host_attention() ? "host" : "device";
  if (!plan.engine.overlap) object["no_overlap"] = true;
  // Budgets without a flag are left out: they are the free memory where the plan is carried out.
  const auto budget = [&](const char* name, const std::optional<uint64_t>& bytes) {
    if (bytes) object[name] = std::to_string(*bytes);
  };
  budget("device_memory", plan.asked.device_memory_bytes);
  if (plan.shape.ranks > 1) object["ranks"] = plan.shape.ranks;
  budget("host_memory", plan.asked.host_memory_bytes);
  budget("disk_memory", plan.asked.disk_memory_bytes);
  // A rule has only its own amounts; the flags refuse others.
  json rule;
  add_kv_rule(plan.kv_rule(), &rule);
  const KvRuleKind kind = plan.kv_rule().kind;
  object["kv_rule"] = rule["kv_rule"];
  if (has_heavy(kind)) object["kv_heavy"] = rule["kv_heavy"];
  if (has_sink(plan.kv_rule())) object["kv_sink"] = rule["kv_sink"];
  for (const char* some : {"kv_keep", "kv_snap"}) {
    if (rule.contains(some)) object[some] = rule[some];
  }
  if (kind != KvRuleKind::kFull) {
    object["kv_recent"] = rule["kv_recent"];
    object["kv_ratio_of"] = rule["kv_ratio_of"];
  }
  return object;
}

std::string plan_flags_text(const Plan& plan) {
  json members = plan_json(plan);
  std::string text = "--block " + std::to_string(plan.block_sequences());
  for (const char* said : {"version", "model", "device", "block"}) members.erase(said);
  if (plan.kv_rule().kind == KvRuleKind::kFull) members.erase("kv_rule");
  for (const auto& [member, value] : members.items()) {
    if (value.is_null()) continue;
    text += " " + flag_of(member);
    if (!value.is_boolean()) text += " " + value_text(value);
  }
  return text;
}

}  // namespace spillway
