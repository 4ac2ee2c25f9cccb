#include "scheduler/seen_beginnings.h"

#include <catch2/catch.hpp>
#include <vector>

#include "kernels/kv_layout.h"

namespace spillway::seen_beginnings_test {
namespace {

std::vector<int32_t> prompt(int32_t first, int64_t blocks, int32_t last) {
  std::vector<int32_t> tokens(static_cast<size_t>(blocks * kKvBlockRows), first);
  for (int64_t block = 1; block < blocks; ++block) {
    tokens[static_cast<size_t>(block * kKvBlockRows)] = static_cast<int32_t>(block);
  }
  tokens.back() = last;
  return tokens;
}

// How much of it was seen before it was noted.
int64_t note(SeenBeginnings& seen, uint64_t key, const std::vector<int32_t>& tokens,
             int64_t blocks) {
  const int64_t before = seen.seen({key, 0}, tokens, blocks);
  CHECK(seen.seen({key, 0}, tokens, blocks) == before);  // Looking notes nothing.
  seen.note({key, 0}, tokens, blocks);
  return before;
}

TEST_CASE("a prompt has seen as many blocks as an earlier one began with") {
  SeenBeginnings seen;
  CHECK(note(seen, 1, prompt(7, 5, 1), 5) == 0);
  CHECK(note(seen, 1, prompt(7, 5, 1), 5) == 5);
  CHECK(note(seen, 1, prompt(7, 5, 2), 5) == 4);
  CHECK(note(seen, 1, prompt(8, 5, 1), 5) == 0);
  CHECK(note(seen, 2, prompt(7, 5, 1), 5) == 0);  // Another salt
  CHECK(note(seen, 1, prompt(7, 3, 1), 2) == 2);
}

TEST_CASE("what was seen long ago is forgotten, and what came since is not") {
  SeenBeginnings seen;
  CHECK(note(seen, 1, prompt(-1, 2, 0), 2) == 0);
  for (int32_t i = 0; i < 20000; ++i) CHECK(note(seen, 1, prompt(i, 2, 0), 2) == 0);
  CHECK(note(seen, 1, prompt(19999, 2, 0), 2) == 2);
  for (int32_t i = 20000; i < 60000; ++i) CHECK(note(seen, 1, prompt(i, 2, 0), 2) == 0);
  CHECK(note(seen, 1, prompt(-1, 2, 0), 2) == 0);
}

}  // namespace
}  // namespace spillway::seen_beginnings_test
