#include "server/commands/workload_sample.h"

#include <catch2/catch.hpp>
#include <random>

namespace spillway {
namespace {

TEST_CASE("requests alike are one group") {
  WorkloadSample sample;
  CHECK(sample.groups(1).empty());
  for (int i = 0; i < 40; ++i) sample.add(100, 20);
  const auto groups = sample.groups(2.5);
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].prompt_tokens == 100);
  CHECK(groups[0].new_tokens == 20);
  CHECK(groups[0].count == 100);
}

TEST_CASE("groups keep count, tokens and tail of what they stand for") {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> lengths(4.5, 1.0);
  WorkloadSample sample;
  int64_t prompt = 0, more = 0, longest = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto length = static_cast<int64_t>(lengths(random)) + 1;
    const auto answer = static_cast<int64_t>(random() % 200);
    sample.add(length, answer);
    prompt += length;
    more += std::max<int64_t>(1, answer);
    longest = std::max(longest, length);
  }
  const auto groups = sample.groups(1);
  REQUIRE(groups.size() == 16);
  int64_t count = 0, prompt_found = 0, more_found = 0;
  for (const RequestGroup& group : groups) {
    count += group.count;
    prompt_found += group.count * group.prompt_tokens;
    more_found += group.count * group.new_tokens;
  }
  CHECK(count == 1000);
  // Means are rounded up: a token each at most.
  CHECK(prompt_found >= prompt);
  CHECK(prompt_found <= prompt + count);
  CHECK(more_found >= more);
  CHECK(more_found <= more + count);
  CHECK(groups.back().prompt_tokens > 3 * prompt / 1000);
  CHECK(groups.back().prompt_tokens < longest);
}

TEST_CASE("nothing to say or to generate counts for one token") {
  WorkloadSample sample;
  sample.add(0, 0);
  const auto groups = sample.groups(0.001);
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].prompt_tokens == 1);
  CHECK(groups[0].new_tokens == 1);
  CHECK(groups[0].count == 1);
}

}  // namespace
}  // namespace spillway
