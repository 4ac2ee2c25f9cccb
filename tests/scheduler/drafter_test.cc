// Drafts from a sequence's own n-grams, and how long they are.
#include "scheduler/drafter.h"

#include <catch2/catch.hpp>
#include <random>

#include "tests/support/seed.h"

namespace spillway::drafter_test {
namespace {

using Tokens = std::vector<int32_t>;

Tokens draft_of(const Tokens& prompt, const Tokens& generated, int64_t most) {
  Tokens draft;
  draft_by_ngrams(prompt, generated, most, &draft);
  return draft;
}

TEST_CASE("a draft is what followed the last tokens before") {
  CHECK(draft_of({1, 2, 3, 4, 5, 6, 1, 2, 3}, {}, 3) == Tokens{4, 5, 6});
  CHECK(draft_of({1, 2, 3, 4, 5, 6}, {7, 1, 2, 3}, 2) == Tokens{4, 5});
  CHECK(draft_of({1, 2, 3, 4, 5, 6}, {7, 2, 3}, 1) == Tokens{4});
  // In what was generated, too, and across the end of the prompt.
  CHECK(draft_of({9}, {1, 2, 3, 4, 1, 2}, 2) == Tokens{3, 4});
  CHECK(draft_of({9, 8}, {7, 6, 8, 7}, 2) == Tokens{6, 8});
}

TEST_CASE("nothing is drafted without a match of two tokens") {
  CHECK(draft_of({}, {}, 4).empty());
  CHECK(draft_of({1}, {}, 4).empty());
  CHECK(draft_of({1, 1}, {}, 4).empty());
  CHECK(draft_of({1, 2, 3, 4}, {5, 6}, 4).empty());
  CHECK(draft_of({1, 2, 3, 4}, {9, 2}, 4).empty());  // One token is no match.
  CHECK(draft_of({1, 2, 1, 2}, {}, 0).empty());
}

TEST_CASE("the longest match counts, of equal ones the latest, up to four tokens") {
  CHECK(draft_of({7, 1, 2, 50, 9, 1, 2, 60, 7, 1, 2}, {}, 1) == Tokens{50});
  CHECK(draft_of({7, 1, 2, 50, 7, 1, 2, 60, 7, 1, 2}, {}, 1) == Tokens{60});
  // Five tokens agree in front of 50, four in front of 60: no more than four are looked at.
  CHECK(draft_of({4, 5, 6, 7, 8, 50, 9, 5, 6, 7, 8, 60, 4, 5, 6, 7, 8}, {}, 1) == Tokens{60});
}

TEST_CASE("a draft that reaches the end goes on with itself") {
  CHECK(draft_of({1, 1, 1}, {}, 4) == Tokens{1, 1, 1, 1});
  CHECK(draft_of({5, 1, 2, 3}, {1, 2, 3, 1, 2}, 7) == Tokens{3, 1, 2, 3, 1, 2, 3});
}

// Every choice tried one after another.
Tokens draft_slowly(const Tokens& tokens, int64_t most) {
  const auto size = static_cast<int64_t>(tokens.size());
  for (int64_t length = kDraftMatchMax; length >= kDraftMatchMin; --length) {
    for (int64_t first = size - length - 1; first >= 0; --first) {
      if (!std::equal(tokens.begin() + first, tokens.begin() + first + length,
                      tokens.end() - length)) {
        continue;
      }
      Tokens all = tokens;
      for (int64_t i = 0; i < most; ++i) {
        all.push_back(all[static_cast<size_t>(first + length + i)]);
      }
      return {all.begin() + size, all.end()};
    }
  }
  return {};
}

TEST_CASE("random sequences are matched as the definition matches them") {
  const uint64_t seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 3000; ++i) {
    Tokens all(random() % 40);
    const uint64_t vocabulary = 1 + random() % 5;
    for (int32_t& token : all) token = static_cast<int32_t>(random() % vocabulary);
    const auto cut = all.begin() + static_cast<std::ptrdiff_t>(random() % (all.size() + 1));
    const auto most = static_cast<int64_t>(random() % 9);
    REQUIRE(draft_of({all.begin(), cut}, {cut, all.end()}, most) == draft_slowly(all, most));
  }
}

// A sequence that repeats without end, so that there is always something to draft.
struct Repeating {
  explicit Repeating(int64_t tokens_max) : drafter(prompt, tokens_max, 1000) {}
  int64_t drafted(int64_t most = 100) {
    Tokens draft;
    drafter.draft(most, &draft);
    return static_cast<int64_t>(draft.size());
  }
  const Tokens prompt = {1, 2, 1, 2, 1, 2, 1, 2};
  Drafter drafter;
};

TEST_CASE("drafts get longer while they come true, and shorter when they do not") {
  Repeating sequence(8);
  Drafter& drafter = sequence.drafter;
  CHECK(sequence.drafted() == 8);
  CHECK(sequence.drafted(3) == 3);
  drafter.judge(8, 2);
  CHECK(sequence.drafted() == 3);
  drafter.judge(3, 3);
  CHECK(sequence.drafted() == 6);
  drafter.judge(6, 6);
  CHECK(sequence.drafted() == 8);
  drafter.judge(8, 0);
  CHECK(sequence.drafted() == 4);
  drafter.judge(1, 1);  // It was cut short, which says nothing against the four.
  CHECK(sequence.drafted() == 4);
  drafter.judge(4, 0);
  CHECK(sequence.drafted() == 2);
}

TEST_CASE("after several wrong drafts in a row a sequence goes without for a while") {
  Repeating sequence(4);
  std::vector<int64_t> pauses;
  for (int64_t pause = 0; pauses.size() < 10;) {
    if (sequence.drafted() == 0) {
      ++pause;
      continue;
    }
    pauses.push_back(std::exchange(pause, 0));
    sequence.drafter.judge(1, 0);
  }
  CHECK(pauses == std::vector<int64_t>{0, 0, 0, 1, 2, 4, 8, 16, 16, 16});
  for (int i = 0; i < 16; ++i) CHECK(sequence.drafted() == 0);
  CHECK(sequence.drafted() == 1);
  sequence.drafter.judge(1, 1);
  CHECK(sequence.drafted() == 2);  // One that comes true ends that.
}

TEST_CASE("what is generated is matched, too") {
  const Tokens prompt = {1, 2, 3};
  Drafter drafter(prompt, 4, 10);
  Tokens draft;
  drafter.draft(4, &draft);
  CHECK(draft.empty());
  for (const int32_t token : {8, 9, 1, 2}) drafter.add(token);
  drafter.draft(4, &draft);
  CHECK(draft == Tokens{3, 8, 9, 1});
}

}  // namespace
}  // namespace spillway::drafter_test
