// Which steps of a sweep have drafts, and what a sequence takes of them.
#include "scheduler/sweep_drafts.h"

#include <catch2/catch.hpp>

#include "tests/support/collecting_sink.h"
#include "tests/support/tiny_shape.h"

namespace spillway::sweep_drafts_test {
namespace {

using test::CollectingSink;

constexpr size_t kVocabulary = 100;

// A sequence whose prompt is 1 2 3 1 2 3 ... and which has generated the token that comes next.
struct Repeating {
  explicit Repeating(int64_t prompt, int64_t draft_tokens = 4, int32_t max_tokens = 50,
                     int32_t stop_token = -1, size_t stop_after = 0)
      : sink(std::make_shared<CollectingSink>(stop_after)) {
    Request request;
    for (int64_t i = 0; i < prompt; ++i) request.prompt.push_back(token_at(i));
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0;
    if (stop_token >= 0) request.stop_tokens = {stop_token};
    sequence = std::make_unique<Sequence>(RequestId{1}, request, sink, test::tiny_shape(),
                                          SequenceKv{}, 0, 0.0);
    if (draft_tokens > 0) sequence->allow_drafts(draft_tokens);
    sequence->admit(nullptr, {}, 0, 1, 1.0);
    give(prompt - 1, token_at(prompt));
    sequence->end_sweep();
  }
  static int32_t token_at(int64_t i) { return static_cast<int32_t>(10 + i % 3); }
  int32_t right(int64_t ahead) const {
    return token_at(sequence->prompt_tokens() + sequence->generated() + ahead);
  }
  void give(int64_t token, int32_t best) {
    std::vector<float> row(kVocabulary, 0.0f);
    row[static_cast<size_t>(best)] = 5;
    sequence->take_logits(token, row, 2.0);
  }
  // A sweep whose logits go on as the prompt does, but for the first `right` ones.
  void sweep(int64_t right_tokens) {
    const auto tokens = static_cast<int64_t>(sequence->next_tokens().size());
    std::vector<int32_t> best;
    for (int64_t i = 0; i < tokens; ++i) best.push_back(i < right_tokens ? right(i) : 99);
    for (int64_t i = 0; i < tokens; ++i) give(i, best[static_cast<size_t>(i)]);
    count_draft(*sequence, &counts);
    sequence->end_sweep();
  }

  std::shared_ptr<CollectingSink> sink;
  std::unique_ptr<Sequence> sequence;
  DraftCounts counts;
};

TEST_CASE("a draft's tokens count up to the first wrong one, which is sampled in its place") {
  for (int64_t right = 0; right <= 5; ++right) {
    INFO(right << " right");
    Repeating one(9);
    const int64_t cached = one.sequence->cached();
    one.sequence->draft(4);
    REQUIRE(one.sequence->drafted() == 4);
    CHECK(one.sequence->next_tokens().size() == 5);
    CHECK(one.sequence->next_tokens()[0] == one.sink->tokens[0]);
    CHECK(one.sequence->next_position() == 9);
    one.sweep(right);
    const int64_t taken = std::min<int64_t>(right + 1, 5);  // The wrong one, or what follows all
    CHECK(one.sequence->generated() == 1 + taken);
    CHECK(one.sequence->cached() == cached + taken);
    CHECK(one.sequence->next_position() == one.sequence->cached());
    CHECK(one.counts.drafts == 1);
    CHECK(one.counts.drafted == 4);
    CHECK(one.counts.accepted == static_cast<uint64_t>(std::min<int64_t>(right, 4)));
    // The next step is one token again, the last one.
    REQUIRE(one.sequence->next_tokens().size() == 1);
    CHECK(one.sequence->next_tokens()[0] == one.sink->tokens.back());
  }
}

TEST_CASE("each token of a draft is sampled by the rule of its own step") {
  Repeating one(9);
  one.sequence->draft(3);
  const auto rules = one.sequence->sample_rules();
  REQUIRE(rules.size() == 4);
  for (const SampleRule& rule : rules) CHECK(rule.count == static_cast<int32_t>(kVocabulary));
  one.sequence->take_sampled(0, one.right(0), 2.0);
  one.sequence->take_sampled(1, 99, 2.0);
  one.sequence->take_sampled(2, 98, 2.0);  // Behind a wrong one
  CHECK(one.sequence->generated() == 3);
  CHECK(one.sink->tokens.back() == 99);
  one.sequence->end_sweep();
  CHECK(one.sequence->sample_rules().empty());
}

TEST_CASE("min_tokens bars the end at the tokens of a draft that come before it") {
  Request request;
  request.prompt = {10, 11, 12, 10, 11, 12, 10, 11};
  request.max_tokens = 20;
  request.min_tokens = 3;
  request.sampling.seed = 5;
  const auto sink = std::make_shared<CollectingSink>();
  Sequence sequence(RequestId{1}, request, sink, test::tiny_shape(), {}, 0, 0.0);
  sequence.allow_drafts(4);
  sequence.admit(nullptr, {}, 0, 1, 1.0);
  std::vector<float> row(kVocabulary, -100.0f);
  row[12] = 5;
  sequence.take_logits(7, row, 2.0);
  sequence.end_sweep();
  sequence.draft(4);
  const auto rules = sequence.sample_rules();
  REQUIRE(rules.size() == 5);
  CHECK(rules[0].count == 0);
  CHECK(rules[1].count == 0);
  CHECK(rules[2].count > 0);
  CHECK(rules[2].uniform == uniform_sample(5, 3));
  CHECK(rules[4].uniform == uniform_sample(5, 5));
}

TEST_CASE("a sequence has no draft beyond its last token") {
  for (int32_t max_tokens = 1; max_tokens <= 7; ++max_tokens) {
    INFO(max_tokens << " tokens");
    Repeating one(9, 4, max_tokens);
    one.sequence->draft(4);
    CHECK(one.sequence->drafted() == std::clamp<int64_t>(max_tokens - 2, 0, 4));
    if (one.sequence->finished()) continue;
    one.sweep(5);
    CHECK(one.sequence->finished() == (max_tokens <= 6));
    CHECK(one.sequence->generated() == std::min<int64_t>(max_tokens, 6));
  }
}

TEST_CASE("a stop within a draft ends the sequence there") {
  Repeating token(9, 4, 50, 12);  // 10 was generated; 11, 12, 10, 11 is the draft.
  token.sequence->draft(4);
  token.sweep(5);
  REQUIRE(token.sequence->finished());
  CHECK(token.sequence->ending().stop_token == 12);
  CHECK(token.sink->tokens == std::vector<int32_t>{10, 11, 12});
  CHECK(token.counts.accepted == 2);
  Repeating text(9, 4, 50, -1, 4);  // Its sink finds a stop string at the fourth token.
  text.sequence->draft(4);
  text.sweep(5);
  REQUIRE(text.sequence->finished());
  CHECK(text.sink->tokens.size() == 4);
  CHECK(text.sequence->cached() == 9 + 3);
}

TEST_CASE("logits that are no numbers are an error only where they count") {
  for (const bool counts : {false, true}) {
    Repeating one(9);
    one.sequence->draft(2);
    one.give(0, counts ? one.right(0) : 99);
    std::vector<float> row(kVocabulary, std::nanf(""));
    one.sequence->take_logits(1, row, 2.0);
    CHECK(one.sequence->finished() == counts);
    if (counts) CHECK(one.sequence->ending().own_fault);
  }
}

std::vector<std::unique_ptr<Sequence>> sequences(const std::vector<int64_t>& prompts) {
  std::vector<std::unique_ptr<Sequence>> all;
  for (const int64_t prompt : prompts) all.push_back(std::move(Repeating(prompt).sequence));
  return all;
}

std::vector<int64_t> lengths(const std::vector<std::unique_ptr<Sequence>>& all) {
  std::vector<int64_t> found;
  for (const auto& sequence : all) found.push_back(sequence->drafted());
  return found;
}

TEST_CASE("a sweep has drafts up to a number of rows, in even shares") {
  using Lengths = std::vector<int64_t>;
  const auto drafted = [](const std::vector<int64_t>& prompts, int64_t rows) {
    const auto all = sequences(prompts);
    draft_sweep(all, rows);
    return lengths(all);
  };
  CHECK(drafted({9}, 8) == Lengths{4});
  CHECK(drafted({9}, 4) == Lengths{3});
  CHECK(drafted({9}, 1) == Lengths{0});
  CHECK(drafted({9, 12}, 8) == Lengths{3, 3});
  CHECK(drafted({9, 12, 15}, 8) == Lengths{1, 1, 1});
  CHECK(drafted({9, 9, 9, 9, 9, 9}, 8) == Lengths{1, 1, 0, 0, 0, 0});
  CHECK(drafted({9, 9, 9, 9, 9, 9, 9, 9}, 8) == Lengths(8, 0));
  CHECK(drafted({1, 9}, 8) == Lengths{0, 3});  // Nothing matches in the first one.
}

TEST_CASE("a prompt's rows count, and it has no draft") {
  auto all = sequences({9});
  Request request;
  request.prompt = {10, 11, 10, 11};
  const auto sink = std::make_shared<CollectingSink>();
  all.push_back(std::make_unique<Sequence>(RequestId{2}, request, sink, test::tiny_shape(),
                                           SequenceKv{}, 0, 0.0));
  all.back()->allow_drafts(4);
  all.back()->admit(nullptr, {}, 0, 1, 1.0);
  draft_sweep(all, 8);
  CHECK(lengths(all) == std::vector<int64_t>{3, 0});
  CHECK(all.back()->next_tokens().size() == 4);
}

TEST_CASE("sequences that may not have drafts have none") {
  std::vector<std::unique_ptr<Sequence>> all;
  all.push_back(std::move(Repeating(9, 0).sequence));
  draft_sweep(all, 8);
  CHECK(all[0]->drafted() == 0);
}

}  // namespace
}  // namespace spillway::sweep_drafts_test
