#include "server/api/completion_kv.h"

#include <nlohmann/json.hpp>
#include <string>

namespace spillway {

namespace {

constexpr int64_t kRowsMax = int64_t{1} << 20;

std::optional<KvAmount> read_amount(FieldReader& fields, const char* name) {
  const auto value = fields.number(name, 0, kRowsMax);
  if (!value) return std::nullopt;
  const nlohmann::json* json = fields.find(name);
  // 1.0 is no ratio below 1, and who writes it does not mean one position.
  if (!json->is_number_float()) return KvAmount{static_cast<int64_t>(*value), 0};
  if (*value < 1) return KvAmount{0, *value};
  fields.fail(invalid_value(name, "must be a whole number of positions, or a ratio below 1"));
  return std::nullopt;
}

}  // namespace

KvRuleChoice read_kv_rule(FieldReader& fields, const KvRule& base) {
  KvRuleChoice choice;
  if (const auto name = fields.string("kv_rule")) {
    choice.kind = kv_rule_of_name(*name);
    if (!choice.kind) fields.fail(invalid_value("kv_rule", "must be full, h2o or window"));
  }
  choice.heavy = read_amount(fields, "kv_heavy");
  choice.recent = read_amount(fields, "kv_recent");
  choice.sink = fields.integer("kv_sink", 0, kRowsMax);
  if (const auto of = fields.string("kv_ratio_of")) {
    choice.ratio_of_prompt = *of == "prompt";
    if (*of != "prompt" && *of != "total") {
      fields.fail(invalid_value("kv_ratio_of", "must be prompt or total"));
    }
  }
  const KvRuleKind kind = choice.kind.value_or(base.kind);
  const auto refuse = [&](const char* name, const std::string& rules) {
    fields.fail(invalid_value(name, "needs kv_rule " + rules + "; the rule is " +
                                        std::string(kv_rule_name(kind)) +
                                        (choice.kind ? "" : ", the server's")));
  };
  if (choice.heavy && kind != KvRuleKind::kH2o) refuse("kv_heavy", "h2o");
  if (choice.recent && kind == KvRuleKind::kFull) refuse("kv_recent", "h2o or window");
  if (choice.sink.value_or(0) > 0 && kind != KvRuleKind::kWindow) refuse("kv_sink", "window");
  if (choice.ratio_of_prompt.value_or(false) && kind == KvRuleKind::kFull) {
    refuse("kv_ratio_of", "h2o or window");
  }
  return choice;
}

}  // namespace spillway
