// The KV rule in the user's terms: which cached positions a sequence keeps, in numbers or as shares
// of its lengths (docs/USER_GUIDE.md, "Keeping less of the KV cache"). Pure, any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/kv_budget.h"

namespace spillway {

enum class KvRuleKind : uint8_t { kFull, kH2o, kWindow, kRandom, kSnap };

std::string_view kv_rule_name(KvRuleKind kind);  // "full", "h2o", "window", "random", "snap"
std::optional<KvRuleKind> kv_rule_of_name(std::string_view name);

// Whether the rule chooses among the positions before its recent ones: as many as KvRule::heavy.
constexpr bool has_heavy(KvRuleKind kind) {
  return kind == KvRuleKind::kH2o || kind == KvRuleKind::kRandom || kind == KvRuleKind::kSnap;
}

// What snap makes of the weights that a prompt's last queries give a position.
enum class KvSnap : uint8_t {
  kMean,
  kMax,  // DefensiveKV (arXiv 2510.13334)
};

std::string_view kv_snap_name(KvSnap snap);  // "mean", "max"
std::optional<KvSnap> kv_snap_of_name(std::string_view name);

// A number of cached positions, or, when `ratio` is above 0, that share of a length.
struct KvAmount {
  int64_t rows = 0;
  double ratio = 0;  // [0, 1)
  friend auto operator<=>(const KvAmount&, const KvAmount&) = default;
};

std::string to_string(const KvAmount& amount);

// The first positions, which a rule protects: so many, or those of the prompt, whatever its length.
struct KvKeep {
  KvAmount amount;
  bool prompt = false;  // Then there is no amount.

  KvKeep(int64_t rows = 0) : amount{rows, 0} {}  // NOLINT: a number of positions is one
  explicit KvKeep(const KvAmount& of_length) : amount(of_length) {}
  static KvKeep whole_prompt() {
    KvKeep keep;
    keep.prompt = true;
    return keep;
  }
  bool none() const { return *this == KvKeep(); }
  friend auto operator<=>(const KvKeep&, const KvKeep&) = default;
};

std::string to_string(const KvKeep& keep);  // "4", "0.1", "prompt"

struct KvRule {
  KvRuleKind kind = KvRuleKind::kFull;
  KvAmount heavy, recent;        // heavy: where has_heavy()
  KvKeep keep;                   // First positions that are protected
  bool ratio_of_prompt = false;  // Ratios are of the prompt, else of prompt and new tokens
  KvSnap snap = KvSnap::kMean;   // For snap
  friend bool operator==(const KvRule&, const KvRule&) = default;
};

// A user's choice of rule; fields left out are taken from the base rule.
struct KvRuleChoice {
  std::optional<KvRuleKind> kind;
  std::optional<KvAmount> heavy, recent;
  std::optional<KvKeep> keep;
  std::optional<bool> ratio_of_prompt;
  std::optional<KvSnap> snap = {};

  bool empty() const { return *this == KvRuleChoice(); }
  friend auto operator<=>(const KvRuleChoice&, const KvRuleChoice&) = default;  // Any order
};

// Returns `base` with the choice applied. A kind other than base's starts from its own default
// amounts: a tenth of the length heavy and a tenth recent where has_heavy() (the 20 % of H2O,
// section 5), a fifth for window.
KvRule apply(const KvRuleChoice& choice, const KvRule& base);

// A rule's name and amounts for display: "h2o (0.1 heavy, 0.1 recent of prompt and new tokens)".
std::string to_string(const KvRule& rule);

// The budget of a sequence of `prompt` tokens and at most `new_tokens` more. Ratios are rounded
// down, `recent` is at least 1, and a rule that keeps every position gives the full budget. That
// of random has no seed yet.
//
// Protected positions are a part of the heavy ones, where a rule has these, and beside a window's
// recent ones. Where they are more than the heavy ones, the budget is raised to hold them and one
// other.
KvBudget resolve(const KvRule& rule, int64_t prompt, int64_t new_tokens);

// The rows by which such a sequence's budget is raised for its protected positions.
int64_t kv_rows_raised(const KvRule& rule, int64_t prompt, int64_t new_tokens);

// The most positions such a sequence can ever cache: its last token is never an input.
constexpr int64_t kv_positions(int64_t prompt, int64_t new_tokens) {
  return prompt + (new_tokens > 1 ? new_tokens - 1 : 0);
}

}  // namespace spillway
