#include "policy/kv_rule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace spillway {

namespace {

constexpr std::array<std::string_view, 5> kNames = {"full", "h2o", "window", "random", "snap"};

int64_t rows_of(const KvAmount& amount, int64_t length) {
  if (amount.ratio <= 0) return amount.rows;
  // 0.29 of 100 is 29, although their product in binary is a little less.
  return static_cast<int64_t>(std::floor(amount.ratio * static_cast<double>(length) + 1e-6));
}

// A rule's amounts for a sequence, as they are asked for.
struct Amounts {
  int64_t heavy, recent, first;
};
Amounts amounts_of(const KvRule& rule, int64_t prompt, int64_t new_tokens) {
  const int64_t length = rule.ratio_of_prompt ? prompt : prompt + new_tokens;
  return {rows_of(rule.heavy, length), std::max<int64_t>(1, rows_of(rule.recent, length)),
          rule.keep.prompt ? prompt : rows_of(rule.keep.amount, length)};
}

// Positions kept besides the recent ones, by score: all protected ones and one other at least.
int64_t kept_of(const Amounts& amounts) {
  return amounts.first > amounts.heavy ? amounts.first + 1 : amounts.heavy;
}

KvRule standard(KvRuleKind kind, bool ratio_of_prompt) {
  KvRule rule;
  rule.kind = kind;
  rule.ratio_of_prompt = ratio_of_prompt;
  if (has_heavy(kind)) rule.heavy = rule.recent = {0, 0.1};
  if (kind == KvRuleKind::kWindow) rule.recent = {0, 0.2};
  return rule;
}

}  // namespace

std::string_view kv_rule_name(KvRuleKind kind) {
  return kNames[static_cast<size_t>(kind)];
}

std::optional<KvRuleKind> kv_rule_of_name(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<KvRuleKind>(found - kNames.begin());
}

std::string_view kv_snap_name(KvSnap snap) {
  return snap == KvSnap::kMax ? "max" : "mean";
}

std::optional<KvSnap> kv_snap_of_name(std::string_view name) {
  for (const KvSnap snap : {KvSnap::kMean, KvSnap::kMax}) {
    if (name == kv_snap_name(snap)) return snap;
  }
  return std::nullopt;
}

std::string to_string(const KvAmount& amount) {
  if (amount.ratio <= 0) return std::to_string(amount.rows);
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", amount.ratio);
  return text;
}

std::string to_string(const KvKeep& keep) {
  return keep.prompt ? "prompt" : to_string(keep.amount);
}

KvRule apply(const KvRuleChoice& choice, const KvRule& base) {
  KvRule rule = base;
  if (choice.kind && *choice.kind != base.kind) {
    rule = standard(*choice.kind, base.ratio_of_prompt);
  }
  rule.heavy = choice.heavy.value_or(rule.heavy);
  rule.recent = choice.recent.value_or(rule.recent);
  rule.keep = choice.keep.value_or(rule.keep);
  rule.ratio_of_prompt = choice.ratio_of_prompt.value_or(rule.ratio_of_prompt);
  rule.snap = choice.snap.value_or(rule.snap);
  return rule;
}

std::string to_string(const KvRule& rule) {
  if (rule.kind == KvRuleKind::kFull) return "full";
  std::string text(kv_rule_name(rule.kind));
  text += " (";
  if (rule.snap == KvSnap::kMax) text += "max, ";
  if (has_heavy(rule.kind)) text += to_string(rule.heavy) + " heavy, ";
  if (rule.keep.prompt) text += "the prompt, ";
  if (!rule.keep.prompt && !rule.keep.none()) text += to_string(rule.keep) + " first, ";
  text += to_string(rule.recent) + " recent";
  if (rule.heavy.ratio > 0 || rule.recent.ratio > 0 || rule.keep.amount.ratio > 0) {
    text += rule.ratio_of_prompt ? " of the prompt" : " of prompt and new tokens";
  }
  return text + ")";
}

KvBudget resolve(const KvRule& rule, int64_t prompt, int64_t new_tokens) {
  if (rule.kind == KvRuleKind::kFull) return {};
  const Amounts amounts = amounts_of(rule, prompt, new_tokens);
  KvBudget budget;
  budget.recent = amounts.recent;
  budget.by_score = has_heavy(rule.kind);
  if (rule.kind == KvRuleKind::kRandom) budget.score = KvScore::kRandom;
  if (rule.kind == KvRuleKind::kSnap) {
    budget.score = rule.snap == KvSnap::kMax ? KvScore::kSnapMax : KvScore::kSnapMean;
  }
  if (budget.by_score) {
    budget.kept = kept_of(amounts);
    budget.first = amounts.first;
  } else {
    budget.kept = amounts.first;
  }
  if (budget.recent + budget.kept >= kv_positions(prompt, new_tokens)) return {};
  // Where all kept positions are protected, there is nothing to choose and no score to store.
  if (budget.first > 0 && budget.first == budget.kept) return {budget.recent, budget.kept, false};
  return budget;
}

int64_t kv_rows_raised(const KvRule& rule, int64_t prompt, int64_t new_tokens) {
  if (!has_heavy(rule.kind)) return 0;
  const Amounts amounts = amounts_of(rule, prompt, new_tokens);
  const auto rows = [&](int64_t kept) {
    return std::min(amounts.recent + kept, kv_positions(prompt, new_tokens));
  };
  return rows(kept_of(amounts)) - rows(amounts.heavy);
}

}  // namespace spillway
