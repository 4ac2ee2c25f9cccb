// KV rules through the whole engine against scripts/h2o_reference.py: the same greedy tokens, kept
// positions and scores, in every format of the cache and on every tier, all cases of a checkpoint
// in one ragged block and each case alone.
#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "server/runtime.h"
#include "tests/support/golden.h"
#include "tests/support/kept_rows.h"
#include "tests/support/places.h"

namespace spillway::h2o_test {
namespace {

using nlohmann::json;

struct Kept {
  std::vector<int64_t> positions;
  std::vector<double> scores;  // Empty where the rule does not go by them.
};

// One prompt under one rule.
struct Case {
  KvRule rule;
  std::vector<int32_t> prompt, tokens;
  std::vector<std::vector<Kept>> kept;  // [layer][head]

  KvBudget budget() const {
    return resolve(rule, static_cast<int64_t>(prompt.size()), static_cast<int64_t>(tokens.size()));
  }
  int64_t positions() const { return static_cast<int64_t>(prompt.size() + tokens.size()) - 1; }
};

KvAmount amount_of(const json& value) {
  if (value.is_number_integer()) return {value.get<int64_t>(), 0};
  return {0, value.get<double>()};
}

Case case_of(const json& about, const json& prompt) {
  Case c;
  c.rule.kind = *kv_rule_of_name(about["rule"].get<std::string>());
  c.rule.heavy = amount_of(about["heavy"]);
  c.rule.recent = amount_of(about["recent"]);
  c.rule.keep = about["sink"].get<int64_t>();
  c.rule.ratio_of_prompt = about["ratio_of"] == "prompt";
  c.prompt = prompt["prompt"].get<std::vector<int32_t>>();
  c.tokens = prompt["tokens"].get<std::vector<int32_t>>();
  for (const json& layer : prompt["kept"]) {
    auto& heads = c.kept.emplace_back();
    for (const json& head : layer) {
      heads.push_back({head["positions"].get<std::vector<int64_t>>(),
                       head.value("scores", std::vector<double>())});
    }
  }
  return c;
}

// By checkpoint. The reference's cache is of the same format.
std::map<std::string, std::vector<Case>> read_cases(Format kv_format) {
  const std::string folder = test::source_directory() + "/tests/golden/";
  const std::string format = std::string(format_name(kv_format));
  std::ifstream file(folder +
                     (kv_format == Format::kF32 ? "h2o.json" : "h2o_cache_" + format + ".json"));
  REQUIRE(file);
  std::map<std::string, std::vector<Case>> cases;
  const json all = json::parse(file);
  for (const json& about : all["cases"]) {
    for (const json& prompt : about["prompts"]) {
      cases[folder + about["checkpoint"].get<std::string>()].push_back(case_of(about, prompt));
    }
  }
  return cases;
}

struct Place {
  const char* name;
  TierPercent weights, kv, activations;
  bool overlap;
};

constexpr Place kPlaces[] = {
    {"memory", {100, 0, 0}, {100, 0, 0}, {100, 0, 0}, true},
    {"KV on disk", {100, 0, 0}, {0, 0, 100}, {100, 0, 0}, true},
    {"half on disk", {40, 10, 50}, {20, 30, 50}, {50, 0, 50}, true},
    {"all on disk, no overlap", {0, 0, 100}, {0, 0, 100}, {0, 0, 100}, false},
};

std::unique_ptr<Runtime> open(const std::string& checkpoint, Format kv_format, const Place& place) {
  EngineFlags flags;
  flags.format = Format::kF32;
  flags.kv_format = kv_format;
  flags.weights = place.weights;
  flags.kv = place.kv;
  flags.activations = place.activations;
  flags.no_overlap = !place.overlap;
  flags.micro_batch = 4;
  flags.block = 24;
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  RuntimeOptions options;
  options.start_scheduler = false;
  Result<std::unique_ptr<Runtime>> runtime = Runtime::open(checkpoint, flags, options);
  INFO(runtime.status().message());
  REQUIRE(runtime.ok());
  return std::move(runtime).value();
}

// A block of cases, each fed the reference's tokens.
class Block final : private LogitsSink {
 public:
  Block(Engine& engine, std::span<const Case> cases) : engine_(engine), cases_(cases) {
    for (const Case& c : cases) {
      caches_.push_back(engine.reserve(c.positions(), c.budget()).value());
      inputs_.push_back(c.prompt);
      inputs_.back().insert(inputs_.back().end(), c.tokens.begin(), c.tokens.end());
    }
  }
  ~Block() override {
    for (auto& cache : caches_) engine_.release(std::move(cache));
  }

  // Returns how many of the greedy tokens are not the reference's.
  int64_t run() {
    size_t steps = 0;
    for (const Case& c : cases_) steps = std::max(steps, c.tokens.size());
    for (step_ = 0; step_ < steps; ++step_) {
      std::vector<SweepItem> items;
      for (size_t i = 0; i < cases_.size(); ++i) {
        const size_t prompt = cases_[i].prompt.size();
        const std::span<const int32_t> all(inputs_[i]);
        const auto tokens = step_ == 0 ? all.first(prompt) : all.subspan(prompt + step_ - 1, 1);
        items.push_back({.tokens = tokens,
                         .position = static_cast<int64_t>(step_ == 0 ? 0 : prompt + step_ - 1),
                         .kv = caches_[i].get()});
      }
      REQUIRE(engine_.run(items, *this).ok());
    }
    return wrong_;
  }

  // By head, whichever tier the layer is on.
  std::vector<std::vector<test::KeptRow>> kept(size_t i, int64_t layer) {
    std::vector<std::byte> state, rows;
    const int64_t positions = cases_[i].positions();
    REQUIRE(engine_.read_kv(*caches_[i], layer, positions, &state, &rows).ok());
    std::vector<std::vector<test::KeptRow>> heads;
    for (int64_t head = 0; head < engine_.kv().layout().heads; ++head) {
      heads.push_back(test::read_kept_rows(engine_.kv().layout(), cases_[i].budget(), positions,
                                           rows.data(), state.data(), head));
    }
    return heads;
  }

 private:
  void on_logits(size_t item, int64_t, std::span<float> logits) override {
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    wrong_ += best == cases_[item].tokens[step_] ? 0 : 1;
  }
  void on_failure(size_t, const Status& status) override { FAIL(status.message()); }

  Engine& engine_;
  std::span<const Case> cases_;
  std::vector<std::unique_ptr<KvSequence>> caches_;
  std::vector<std::vector<int32_t>> inputs_;
  size_t step_ = 0;
  int64_t wrong_ = 0;
};

// A sequence's positions are the reference's, and so its scores to within `score_error_max` of the
// largest.
void expect_kept(Block& block, size_t i, const Case& c, double score_error_max) {
  double error = 0, largest = 1e-30;
  for (size_t layer = 0; layer < c.kept.size(); ++layer) {
    const auto heads = block.kept(i, static_cast<int64_t>(layer));
    REQUIRE(heads.size() == c.kept[layer].size());
    for (size_t head = 0; head < heads.size(); ++head) {
      const Kept& want = c.kept[layer][head];
      std::vector<int64_t> positions;
      for (const test::KeptRow& row : heads[head]) positions.push_back(row.position);
      CHECK(positions == want.positions);
      if (!c.budget().scored() || positions != want.positions) continue;
      REQUIRE(want.scores.size() == positions.size());
      for (size_t row = 0; row < positions.size(); ++row) {
        error = std::max(error, std::abs(heads[head][row].score - want.scores[row]));
        largest = std::max(largest, want.scores[row]);
      }
    }
  }
  CHECK(error <= score_error_max * largest);
}

// Those of `cases` in one block.
void expect(Engine& engine, std::span<const Case> cases, double score_error_max) {
  Block block(engine, cases);
  CHECK(block.run() == 0);
  for (size_t i = 0; i < cases.size(); ++i) {
    INFO("prompt of " << cases[i].prompt.size() << ", " << to_string(cases[i].rule));
    expect_kept(block, i, cases[i], score_error_max);
  }
}

void check(Format kv_format, double score_error_max) {
  const test::TemporaryCache cache;
  size_t rules = 0;
  for (const auto& [checkpoint, cases] : read_cases(kv_format)) {
    for (size_t p = 0; p < std::size(kPlaces); ++p) {
      INFO(checkpoint << ", KV " << format_name(kv_format) << ", " << kPlaces[p].name);
      const auto runtime = open(checkpoint, kv_format, kPlaces[p]);
      expect(runtime->engine(), cases, score_error_max);
      for (size_t i = p; i < cases.size(); i += std::size(kPlaces)) {
        INFO("alone");  // Each in one place, to save time
        expect(runtime->engine(), {&cases[i], 1}, score_error_max);
      }
    }
    rules += cases.size();
  }
  CHECK(rules >= (kv_format == Format::kF32 ? 48 : 32));  // 16 rules each
}

TEST_CASE("KV rules agree with the reference: tokens, kept positions and scores", "[gpu][slow]") {
  check(Format::kF32, 1e-4);
}

// The reference rounds keys and values as the cache does, so that tokens and positions are equal
// here, too, 4-bit ones included. Where a number lies between two of the format's, the order of a
// sum decides which it becomes, and scores follow by a little: 1e-4 of the largest in 4-bit, 5e-3
// in bf16 (the reference's SCORE_MOVE_MAX), where some number of a prompt always does;
// 7e-4 measured in f16.
TEST_CASE("KV rules agree with the reference in the cache's narrow formats", "[gpu][slow]") {
  const auto format = GENERATE(Format::kF16, Format::kBF16, Format::kQ4, Format::kQ8);
  check(format, format == Format::kBF16 ? 5e-3 : format == Format::kF16 ? 1.5e-3 : 5e-4);
}

// The plan's own rule: room for as many sequences as it says, each reserved for the longest that
// may come.
TEST_CASE("a plan with a KV rule holds the block that it says", "[gpu]") {
  const test::TemporaryCache cache;
  const std::string checkpoint = read_cases(Format::kF32).begin()->first;
  const std::string rule = GENERATE("h2o", "window");
  const TierPercent place =
      GENERATE(TierPercent{100, 0, 0}, TierPercent{0, 0, 100}, TierPercent{50, 0, 50});
  INFO(rule << ", " << place[2] << " % on disk");
  EngineFlags flags;
  flags.kv_rule = rule;
  flags.kv = place;
  flags.block = 48;
  flags.host_memory_bytes = uint64_t{1} << 30;
  RuntimeOptions options;
  options.start_scheduler = false;
  const auto runtime = Runtime::open(checkpoint, flags, options).value();
  CHECK(runtime->plan().sequences_at_once == 48);
  const int64_t positions = runtime->shape().positions;
  const KvBudget budget = resolve(runtime->plan().kv_rule(), positions, 0);
  REQUIRE_FALSE(budget.full());
  std::vector<std::unique_ptr<KvSequence>> held;
  for (int i = 0; i < 48; ++i) {
    auto one = runtime->engine().reserve(positions, budget);
    INFO(i);
    REQUIRE(one.ok());
    held.push_back(std::move(one).value());
  }
  // Whatever a request names passes through the staging memory.
  CHECK(runtime->engine().kv().check_holds(positions).ok());
  CHECK(runtime->engine().kv().check_holds(positions, {1, positions - 2, true}).ok());
  for (auto& one : held) runtime->engine().release(std::move(one));
}

}  // namespace
}  // namespace spillway::h2o_test
