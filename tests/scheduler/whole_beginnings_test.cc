#include "scheduler/whole_beginnings.h"

#include <catch2/catch.hpp>

namespace spillway::whole_beginnings_test {
namespace {

constexpr int64_t kLayers = 2;
const KvLayout kLayout{2, 8, Format::kF32};
const KvBudget kH2o{10, 12, true};
const KvBudget kWindow{10, 2};

struct Fixture {
  explicit Fixture(uint64_t blocks) {
    KvCacheOptions options;
    options.layout = kLayout;
    options.layers = {0, kLayers};
    options.memory_bytes = blocks * kLayers * kLayout.block_bytes();
    kv = KvCache::open(*device, options).value();
    all.emplace(*kv);
  }
  ~Fixture() {
    all.reset();
    CHECK(kv->reserved_bytes() == 0);
    kv->verify();
  }
  WholeBeginnings::Use add(const std::vector<int32_t>& prompt, int64_t blocks,
                           const KvBudget& budget = kWindow) {
    const WholeBeginnings::Use use = all->add({}, prompt, blocks, budget);
    if (use != nullptr) use->computed = true;
    return use;
  }

  std::unique_ptr<Device> device = open_cpu_device(1).value();
  std::unique_ptr<KvCache> kv;
  std::optional<WholeBeginnings> all;
};

std::vector<int32_t> prompt(int32_t token, int64_t tokens, int32_t last) {
  std::vector<int32_t> all(static_cast<size_t>(tokens), token);
  all.back() = last;
  return all;
}

TEST_CASE("a prompt finds the longest beginning that is a whole one of it") {
  Fixture f(100);
  f.add(prompt(1, 40, 7), 2);
  f.add(prompt(1, 90, 8), 5);
  f.add(prompt(2, 90, 8), 5);
  const auto found = [&](const std::vector<int32_t>& of, int64_t most, const CacheSalt& salt = {}) {
    const WholeBeginnings::Found one = f.all->find(salt, of, most, false);
    CHECK(one.computing_blocks == 0);
    return one.beginning == nullptr ? 0 : one.beginning->blocks();
  };
  CHECK(found(prompt(1, 200, 9), 12) == 5);
  CHECK(found(prompt(1, 200, 9), 4) == 2);
  CHECK(found(prompt(1, 60, 9), 3) == 2);
  CHECK(found(prompt(3, 60, 9), 3) == 0);
  CHECK(found(prompt(1, 200, 9), 12, {4, 0}) == 0);
}

TEST_CASE("what goes by scores finds only what has scores") {
  Fixture f(100);
  const std::vector<int32_t> tokens = prompt(1, 90, 8);
  f.add(tokens, 5);
  CHECK(f.all->find({}, tokens, 5, true).beginning == nullptr);
  const WholeBeginnings::Use scored = f.add(tokens, 3, kH2o);
  REQUIRE(scored != nullptr);
  CHECK(scored->scored());
  CHECK(f.all->find({}, tokens, 5, true).beginning == scored);
  CHECK(f.all->find({}, tokens, 5, false).beginning->blocks() == 5);
  const uint64_t rows = 8 * f.kv->page_bytes();
  CHECK(f.all->bytes() > rows);
  CHECK(f.all->bytes() == f.all->bytes_for(5, kWindow, 90) + f.all->bytes_for(3, kH2o, 90));
  CHECK(f.all->bytes() == f.kv->reserved_bytes());
  CHECK(f.all->used_bytes() == f.all->bytes_for(3, kH2o, 90));
  CHECK_FALSE(WholeBeginnings::needs_scores(kWindow));
  KvBudget snap = kH2o;
  snap.score = KvScore::kSnapMean;
  CHECK_FALSE(WholeBeginnings::needs_scores(snap));
}

TEST_CASE("what is being computed is not found, and goes first when nobody computes it any more") {
  Fixture f(10);
  const WholeBeginnings::Use kept = f.add(prompt(1, 90, 8), 2);
  f.add(prompt(2, 90, 8), 2);
  f.add(prompt(3, 90, 8), 2);
  {
    const WholeBeginnings::Use computing = f.all->add({}, prompt(4, 90, 8), 3, kWindow);
    REQUIRE(computing != nullptr);
    const WholeBeginnings::Found found = f.all->find({}, prompt(4, 90, 9), 5, false);
    CHECK(found.beginning == nullptr);
    CHECK(found.computing_blocks == 3);
  }
  CHECK(f.all->find({}, prompt(4, 90, 9), 5, false).computing_blocks == 0);
  CHECK(f.add(prompt(5, 90, 8), 2) == nullptr);  // No room
  CHECK(f.all->find({}, prompt(2, 90, 9), 5, false).beginning != nullptr);
  CHECK(f.all->evict());  // The one that was never computed
  CHECK(f.all->bytes() == 6 * f.kv->page_bytes());
  CHECK(f.all->evict());  // 3, since 2 was found later and the first is in use
  CHECK(f.all->find({}, prompt(3, 90, 9), 5, false).beginning == nullptr);
  CHECK(f.all->evict());
  CHECK_FALSE(f.all->evict());
  CHECK(f.all->find({}, prompt(1, 90, 9), 5, false).beginning == kept);
}

}  // namespace
}  // namespace spillway::whole_beginnings_test
