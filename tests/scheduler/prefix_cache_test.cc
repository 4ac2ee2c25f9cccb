// The tree of cached beginnings: by hand, and a random workload against a plain list of prompts.
#include "scheduler/prefix_cache.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "tests/support/seed.h"

namespace spillway::prefix_cache_test {
namespace {

constexpr int64_t kLayers = 2;
const KvLayout kLayout{1, 8, Format::kF32};

struct Fixture {
  explicit Fixture(int64_t blocks) {
    KvCacheOptions options;
    options.layout = kLayout;
    options.layers = {0, kLayers};
    options.memory_bytes = static_cast<uint64_t>(blocks * kLayers) * kLayout.block_bytes();
    kv = KvCache::open(*device, options).value();
    cache.emplace(*kv);
  }

  PrefixCache::Use hold(const std::vector<int32_t>& prompt, const CacheSalt& salt = {}) {
    return PrefixCache::Use(*cache, cache->find(salt, prompt).entry);
  }
  // Computes all of a prompt that could be shared.
  PrefixCache::Use add(const std::vector<int32_t>& prompt, const CacheSalt& salt = {}) {
    const PrefixCache::Found found = cache->find(salt, prompt);
    const int64_t blocks = PrefixCache::blocks_of(static_cast<int64_t>(prompt.size()));
    if (blocks == found.blocks) return PrefixCache::Use(*cache, found.entry);
    PrefixCache::Use use = cache->extend(salt, prompt, found, blocks - found.blocks);
    cache->computed(use, use.blocks());
    cache->verify();
    return use;
  }
  int64_t found(const std::vector<int32_t>& prompt, const CacheSalt& salt = {}) {
    const int64_t blocks = cache->find(salt, prompt).blocks;
    cache->verify();
    return blocks;
  }

  std::unique_ptr<Device> device = open_cpu_device(1).value();
  std::unique_ptr<KvCache> kv;
  std::optional<PrefixCache> cache;
};

// A prompt of one token by block, and one more.
std::vector<int32_t> prompt(const std::vector<int32_t>& blocks) {
  std::vector<int32_t> tokens;
  for (const int32_t block : blocks) tokens.insert(tokens.end(), kKvBlockRows, block);
  tokens.push_back(99);
  return tokens;
}

TEST_CASE("prompts find the longest beginning that was computed") {
  Fixture f(100);
  CHECK(f.found(prompt({1, 2, 3})) == 0);
  f.add(prompt({1, 2, 3, 4}));
  CHECK(f.cache->bytes() == 4 * f.kv->page_bytes());
  CHECK(f.cache->used_bytes() == 0);
  CHECK(f.found(prompt({1, 2, 3, 4, 5})) == 4);
  CHECK(f.found(prompt({1, 2, 7, 4})) == 2);
  CHECK(f.found(prompt({2, 2})) == 0);
  CHECK(f.found(prompt({1, 2, 3, 4}), {0, 5}) == 0);  // Another salt
  std::vector<int32_t> last = prompt({1, 2, 3, 4});
  last.pop_back();  // Its last token is computed in any case.
  CHECK(f.found(last) == 3);
  last[20] = 77;  // In the second block
  CHECK(f.found(last) == 1);
  CHECK(f.found({1, 1, 1}) == 0);
}

TEST_CASE("a beginning that is cut stays whole for whoever uses it") {
  Fixture f(100);
  const PrefixCache::Use use = f.add(prompt({1, 2, 3, 4}));
  const std::vector<const KvPages*> before = use.pages();
  REQUIRE(before.size() == 1);
  const KvRun run = before[0]->runs[1][0];
  const PrefixCache::Use other = f.add(prompt({1, 2, 8}));
  CHECK(use.blocks() == 4);
  CHECK(other.blocks() == 3);
  const std::vector<const KvPages*> pages = use.pages();
  REQUIRE(pages.size() == 2);
  CHECK(pages[0] == other.pages()[0]);
  CHECK(pages[0]->blocks == 2);
  CHECK(pages[1]->blocks == 2);
  CHECK(pages[0]->runs[1][0].offset == run.offset);
  CHECK(pages[1]->runs[1][0].offset == run.offset + 2 * kLayout.block_bytes());
  CHECK(f.cache->used_bytes() == 5 * f.kv->page_bytes());
}

TEST_CASE("what is being computed is found by nobody, and goes if it is not finished") {
  Fixture f(100);
  f.add(prompt({1, 2}));
  {
    const PrefixCache::Found found = f.cache->find({}, prompt({1, 2, 3, 4}));
    CHECK(found.blocks == 2);
    CHECK(found.used_blocks == 0);
    PrefixCache::Use computing = f.cache->extend({}, prompt({1, 2, 3, 4}), found, 2);
    REQUIRE_FALSE(computing.empty());
    f.cache->verify();
    const PrefixCache::Found other = f.cache->find({}, prompt({1, 2, 3, 5}));
    CHECK(other.blocks == 2);
    CHECK(other.used_blocks == 2);
    CHECK(other.computing_blocks == 1);
    CHECK(f.cache->extend({}, prompt({1, 2, 3, 5}), other, 2).empty());
    CHECK(f.cache->bytes() == 4 * f.kv->page_bytes());
  }
  CHECK(f.cache->bytes() == 2 * f.kv->page_bytes());
  CHECK(f.found(prompt({1, 2, 3, 4})) == 2);
}

TEST_CASE("what of a beginning has been computed is found while its rest is computed") {
  Fixture f(100);
  const std::vector<int32_t> long_prompt = prompt({1, 2, 3, 4, 5});
  PrefixCache::Use use = f.cache->extend({}, long_prompt, f.cache->find({}, long_prompt), 5);
  f.cache->computed(use, 0);
  CHECK(f.cache->find({}, long_prompt).computing_blocks == 5);
  f.cache->computed(use, 2);
  f.cache->verify();
  const PrefixCache::Found found = f.cache->find({}, prompt({1, 2, 3, 9}));
  CHECK(found.blocks == 2);
  CHECK(found.computing_blocks == 1);
  CHECK(f.found(prompt({1, 7})) == 1);
  f.cache->computed(use, 4);
  CHECK(f.found(long_prompt) == 4);
  CHECK(use.blocks() == 5);
  use.reset();  // It was not finished.
  f.cache->verify();
  CHECK(f.found(long_prompt) == 4);
  CHECK(f.cache->bytes() == 4 * f.kv->page_bytes());
}

TEST_CASE("the least recently used beginnings go first, ends before what they stand behind") {
  Fixture f(100);
  f.add(prompt({1, 2}));
  f.add(prompt({5, 6}));
  f.add(prompt({1, 2, 3}));
  const PrefixCache::Use used = f.add(prompt({9}));
  f.hold(prompt({5, 6}));
  CHECK(f.cache->evict());  // 3
  CHECK(f.found(prompt({1, 2, 3})) == 2);
  CHECK(f.cache->evict());  // 1, 2
  CHECK(f.found(prompt({1, 2, 3})) == 0);
  CHECK(f.found(prompt({5, 6})) == 2);
  CHECK(f.cache->evict());
  CHECK_FALSE(f.cache->evict());
  CHECK(f.found(prompt({9})) == 1);
}

TEST_CASE("a random workload finds what a list of prompts says, and loses no memory") {
  const uint64_t seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto draw = [&](uint64_t below) { return static_cast<int32_t>(random() % below); };
  Fixture f(60);
  std::vector<PrefixCache::Use> uses;
  std::vector<std::vector<int32_t>> held;   // What these use, by block
  std::set<std::vector<int32_t>> computed;  // Beginnings that may be there
  for (int step = 0; step < 3000; ++step) {
    std::vector<int32_t> blocks;
    for (int n = 1 + draw(6); n > 0; --n) blocks.push_back(draw(3));
    const PrefixCache::Found found = f.cache->find({}, prompt(blocks));
    f.cache->verify();
    // Nothing is found that was not computed, and nothing is lost that somebody uses.
    const std::vector<int32_t> there(blocks.begin(), blocks.begin() + found.blocks);
    CHECK((there.empty() || computed.contains(there)));
    for (const auto& other : held) {
      const auto same = std::mismatch(other.begin(), other.end(), blocks.begin(), blocks.end());
      CHECK(found.blocks >= same.first - other.begin());
    }
    const auto more = static_cast<int64_t>(blocks.size()) - found.blocks;
    PrefixCache::Use use(*f.cache, found.entry);
    if (more > 0) {
      PrefixCache::Use longer;
      do {
        longer = f.cache->extend({}, prompt(blocks), found, more);
      } while (longer.empty() && f.cache->evict());
      if (!longer.empty() && draw(5) > 0) {
        f.cache->computed(longer, longer.blocks());
        use = std::move(longer);
        for (size_t n = 1; n <= blocks.size(); ++n) {
          computed.insert({blocks.begin(), blocks.begin() + static_cast<ptrdiff_t>(n)});
        }
      }
    }
    f.cache->verify();
    if (!use.empty() && draw(2) == 0) {
      blocks.resize(static_cast<size_t>(use.blocks()));
      uses.push_back(std::move(use));
      held.push_back(blocks);
    }
    while (uses.size() > 6) {
      const size_t gone = static_cast<size_t>(draw(uses.size()));
      std::swap(uses[gone], uses.back());
      std::swap(held[gone], held.back());
      uses.pop_back();
      held.pop_back();
    }
    f.kv->verify();
    CHECK(f.kv->reserved_bytes() == f.cache->bytes());
  }
  uses.clear();
  CHECK(f.cache->used_bytes() == 0);
  while (f.cache->evict()) f.cache->verify();
  CHECK(f.kv->reserved_bytes() == 0);
}

}  // namespace
}  // namespace spillway::prefix_cache_test
