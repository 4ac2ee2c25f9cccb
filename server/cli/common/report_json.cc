#include "server/cli/common/report_json.h"

#include <nlohmann/json.hpp>

namespace spillway {

namespace {

nlohmann::json json_of(const KvAmount& amount) {
  return amount.ratio > 0 ? nlohmann::json(amount.ratio) : nlohmann::json(amount.rows);
}

}  // namespace

void add_kv_rule(const KvRule& rule, nlohmann::json* object) {
  (*object)["kv_rule"] = kv_rule_name(rule.kind);
  (*object)["kv_heavy"] = json_of(rule.heavy);
  (*object)["kv_recent"] = json_of(rule.recent);
  (*object)["kv_sink"] = rule.sink;
  (*object)["kv_ratio_of"] = rule.ratio_of_prompt ? "prompt" : "total";
}

nlohmann::json json_of_quantization(const Q4Error& error) {
  return {{"format", dtype_name(DType::kQ4)},
          {"group", kQ4Group},
          {"relative_rms", error.relative_rms()},
          {"error_max", error.error_max},
          {"saturated", error.saturated}};
}

}  // namespace spillway
