// What people write about the KV cache, as numbers of positions.
#include "policy/kv_rule.h"

#include <catch2/catch.hpp>

namespace spillway::kv_rule_test {
namespace {

KvRule h2o(KvAmount heavy, KvAmount recent, bool of_prompt = false) {
  return {KvRuleKind::kH2o, heavy, recent, 0, of_prompt};
}

TEST_CASE("ratios are rounded down, recent is at least one") {
  CHECK(resolve(h2o({0, 0.1}, {0, 0.1}), 512, 512) == KvBudget{102, 102, true});
  CHECK(resolve(h2o({0, 0.1}, {0, 0.1}, true), 512, 512) == KvBudget{51, 51, true});
  CHECK(resolve(h2o({0, 0.29}, {0, 0.57}), 60, 40) == KvBudget{57, 29, true});  // Exact in decimals
  CHECK(resolve(h2o({0, 0.01}, {0, 0.01}), 10, 40) == KvBudget{1, 0, true});
  CHECK(resolve(h2o({7, 0}, {0, 0}), 100, 10) == KvBudget{1, 7, true});
  CHECK(resolve({KvRuleKind::kWindow, {}, {0, 0.2}, 4, false}, 100, 100) == KvBudget{40, 4, false});
}

TEST_CASE("what keeps every position is the full cache") {
  CHECK(resolve({}, 100, 100).full());
  // 109 positions: the last new token is never an input.
  CHECK(resolve(h2o({50, 0}, {59, 0}), 100, 10).full());
  CHECK(resolve(h2o({50, 0}, {58, 0}), 100, 10) == KvBudget{58, 50, true});
  CHECK(resolve(h2o({500, 0}, {500, 0}), 100, 10).full());
  CHECK(resolve(h2o({0, 0}, {1, 0}), 1, 0).full());
}

TEST_CASE("protected positions are a part of the heavy ones and beside a window's recent ones") {
  KvRule rule = h2o({20, 0}, {10, 0});
  rule.keep = 4;
  CHECK(resolve(rule, 100, 100) == KvBudget{10, 20, true, 4});
  CHECK(kv_rows_raised(rule, 100, 100) == 0);
  rule.keep = KvKeep({0, 0.05});
  CHECK(resolve(rule, 100, 100) == KvBudget{10, 20, true, 10});
  rule.ratio_of_prompt = true;
  CHECK(resolve(rule, 100, 100) == KvBudget{10, 20, true, 5});
  rule.keep = 20;  // They are all that is kept: no scores.
  CHECK(resolve(rule, 100, 100) == KvBudget{10, 20, false});
  CHECK(kv_rows_raised(rule, 100, 100) == 0);
  rule.kind = KvRuleKind::kWindow;
  rule.keep = KvKeep::whole_prompt();
  CHECK(resolve(rule, 40, 100) == KvBudget{10, 40, false});
  CHECK(kv_rows_raised(rule, 40, 100) == 0);
}

TEST_CASE("a budget that does not hold the protected positions is raised to hold one more") {
  KvRule rule = h2o({20, 0}, {10, 0});
  rule.keep = 21;
  CHECK(resolve(rule, 100, 100) == KvBudget{10, 22, true, 21});
  CHECK(kv_rows_raised(rule, 100, 100) == 2);
  rule.keep = KvKeep::whole_prompt();
  CHECK(resolve(rule, 60, 100) == KvBudget{10, 61, true, 60});
  CHECK(kv_rows_raised(rule, 60, 100) == 41);
  // 109 positions in all: raised to the full cache, and by no more than there are.
  CHECK(resolve(rule, 100, 10).full());
  CHECK(kv_rows_raised(rule, 100, 10) == 79);
  CHECK(kv_rows_raised({}, 100, 10) == 0);
}

TEST_CASE("random has the amounts of h2o") {
  KvRule rule = apply({KvRuleKind::kRandom, {}, {}, {}, {}}, {});
  CHECK(to_string(rule) == "random (0.1 heavy, 0.1 recent of prompt and new tokens)");
  CHECK(resolve(rule, 100, 100) == KvBudget{20, 20, true, 0, KvScore::kRandom});
  CHECK_FALSE(resolve(rule, 100, 100).scored());
  rule.keep = KvKeep::whole_prompt();
  CHECK(resolve(rule, 100, 100) == KvBudget{20, 101, true, 100, KvScore::kRandom});
  CHECK(kv_rows_raised(rule, 100, 100) == 81);
}

TEST_CASE("snap has the amounts of h2o, and goes by the mean or the highest weight") {
  KvRule rule = apply({KvRuleKind::kSnap, {}, {}, {}, {}}, {});
  CHECK(to_string(rule) == "snap (0.1 heavy, 0.1 recent of prompt and new tokens)");
  CHECK(resolve(rule, 500, 100) == KvBudget{60, 60, true, 0, KvScore::kSnapMean});
  KvRuleChoice choice;
  choice.snap = KvSnap::kMax;
  CHECK_FALSE(choice.empty());
  rule = apply(choice, rule);
  CHECK(to_string(rule) == "snap (max, 0.1 heavy, 0.1 recent of prompt and new tokens)");
  CHECK(resolve(rule, 500, 100) == KvBudget{60, 60, true, 0, KvScore::kSnapMax});
  CHECK(resolve(rule, 500, 100).scored());
  // Another rule starts from its own options.
  CHECK(apply({KvRuleKind::kH2o, {}, {}, {}, {}}, rule).snap == KvSnap::kMean);
  for (const KvSnap snap : {KvSnap::kMean, KvSnap::kMax}) {
    CHECK(kv_snap_of_name(kv_snap_name(snap)) == snap);
  }
  CHECK_FALSE(kv_snap_of_name("median"));
}

TEST_CASE("snap's window of queries is the prompt's last 64, or 32, or the recent ones") {
  const KvBudget budget{20, 60, true, 0, KvScore::kSnapMean};
  CHECK(budget.scored_from(1000) == 936);
  CHECK(budget.scored_from(256) == 192);
  CHECK(budget.scored_from(255) == 223);
  CHECK(budget.scored_from(20) == 0);
  CHECK(KvBudget{20, 43, true, 0, KvScore::kSnapMax}.scored_from(1000) == 980);
  CHECK(KvBudget{20, 43, true}.scored_from(1000) == 0);
}

TEST_CASE("a choice takes from the base what it leaves out") {
  const KvRule base = h2o({0, 0.05}, {0, 0.15});
  CHECK(apply({}, base) == base);
  KvRuleChoice choice;
  choice.recent = KvAmount{32, 0};
  CHECK(apply(choice, base) == h2o({0, 0.05}, {32, 0}));
  choice = {};
  choice.kind = KvRuleKind::kH2o;
  CHECK(apply(choice, base) == base);
  CHECK(apply(choice, {}) == h2o({0, 0.1}, {0, 0.1}));
  choice.kind = KvRuleKind::kWindow;
  choice.keep = 4;
  CHECK(apply(choice, base) == KvRule{KvRuleKind::kWindow, {}, {0, 0.2}, 4, false});
  choice = {};
  choice.kind = KvRuleKind::kFull;
  CHECK(apply(choice, base) == KvRule{});
}

TEST_CASE("rules read as people write them") {
  CHECK(to_string(KvRule{}) == "full");
  CHECK(to_string(h2o({0, 0.1}, {64, 0})) == "h2o (0.1 heavy, 64 recent of prompt and new tokens)");
  CHECK(to_string(h2o({10, 0}, {64, 0})) == "h2o (10 heavy, 64 recent)");
  CHECK(to_string(KvRule{KvRuleKind::kWindow, {}, {0, 0.25}, 4, true}) ==
        "window (4 first, 0.25 recent of the prompt)");
  CHECK(to_string(KvRule{KvRuleKind::kWindow, {}, {16, 0}, KvKeep({0, 0.5}), true}) ==
        "window (0.5 first, 16 recent of the prompt)");
  CHECK(to_string(KvRule{KvRuleKind::kH2o, {8, 0}, {16, 0}, KvKeep::whole_prompt(), false}) ==
        "h2o (8 heavy, the prompt, 16 recent)");
  for (const auto kind : {KvRuleKind::kFull, KvRuleKind::kH2o, KvRuleKind::kWindow,
                          KvRuleKind::kRandom, KvRuleKind::kSnap}) {
    CHECK(kv_rule_of_name(kv_rule_name(kind)) == kind);
  }
  CHECK_FALSE(kv_rule_of_name("h3o"));
}

// The slots of a budget: at every position those in use are the first, and the row of a step is
// among them.
TEST_CASE("slots in use are always the first") {
  for (const KvBudget budget :
       {KvBudget{1, 0, true}, KvBudget{3, 4, true}, KvBudget{5, 1, false}}) {
    for (int64_t position = 0; position < 40; ++position) {
      CHECK(budget.slot(position) < budget.attended(position));
      CHECK(budget.attended(position) <= budget.span(position + 1));
      CHECK(budget.span(position) <= budget.span(position + 1));
      CHECK(budget.span(position + 1) <= budget.slots(1000));
      CHECK(budget.rows(position) <= budget.kept + budget.recent);
    }
  }
}

}  // namespace
}  // namespace spillway::kv_rule_test
