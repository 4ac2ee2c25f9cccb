// Pages of prompts' beginnings: cut without losing a byte, and what a sequence behind them reads
// and changes of its own.
#include "offload/kv_sequence.h"

#include <catch2/catch.hpp>
#include <random>

#include "offload/kv_cache.h"
#include "tests/support/seed.h"

namespace spillway::kv_sequence_test {
namespace {

constexpr int64_t kLayers = 3;
const KvLayout kLayout{2, 8, Format::kF32};

std::unique_ptr<KvCache> open(Device& device, uint64_t memory, uint64_t disk = 0) {
  KvCacheOptions options;
  options.layout = kLayout;
  options.layers = {0, kLayers};
  options.memory_bytes = memory;
  options.disk_bytes = disk;
  options.staging_bytes = disk;
  return KvCache::open(device, options).value();
}

// The bytes of every block of a layer, in order.
std::vector<uint64_t> blocks_of(const std::vector<KvRun>& runs) {
  std::vector<uint64_t> offsets;
  for (const KvRun& run : runs) {
    CHECK(run.bytes == static_cast<uint64_t>(run.blocks) * kLayout.block_bytes());
    for (int64_t block = 0; block < run.blocks; ++block) {
      offsets.push_back(run.offset + static_cast<uint64_t>(block) * kLayout.block_bytes());
    }
  }
  return offsets;
}

TEST_CASE("pages are cut at any block, and both parts give back all of their memory") {
  const uint64_t seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto device = open_cpu_device(1).value();
  const auto cache = open(*device, 40 * kLayers * kLayout.block_bytes());
  // Free memory in pieces, so that pages are runs.
  std::vector<KvPages> holes;
  for (int i = 0; i < 20; ++i) holes.push_back(*cache->reserve_pages(2));
  CHECK_FALSE(cache->reserve_pages(1));
  int64_t free = 0;
  for (size_t i = 0; i < holes.size(); ++i) {
    if (random() % 2 == 0) continue;
    cache->release(holes[i]);
    holes[i].runs.clear();
    free += 2;
  }
  if (free < 2) return;
  KvPages pages = *cache->reserve_pages(free);
  std::vector<std::vector<uint64_t>> before;
  for (const auto& runs : pages.runs) before.push_back(blocks_of(runs));
  const auto count = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(free - 1));
  const KvPages rest = pages.split_off(count, kLayout.block_bytes());
  CHECK(pages.blocks == count);
  CHECK(rest.blocks == free - count);
  for (size_t layer = 0; layer < before.size(); ++layer) {
    std::vector<uint64_t> after = blocks_of(pages.runs[layer]);
    CHECK(after.size() == static_cast<size_t>(count));
    const std::vector<uint64_t> behind = blocks_of(rest.runs[layer]);
    after.insert(after.end(), behind.begin(), behind.end());
    CHECK(after == before[layer]);
  }
  cache->release(pages);
  cache->release(rest);
  for (const KvPages& hole : holes) cache->release(hole);
  CHECK(cache->reserved_bytes() == 0);
  cache->verify();
}

TEST_CASE("a sequence behind a shared beginning has memory for its own blocks alone") {
  const auto device = open_cpu_device(1).value();
  const uint64_t block = kLayout.block_bytes();
  const auto cache = open(*device, 60 * kLayers * block, 60 * kLayers * block);
  const KvPages one = *cache->reserve_pages(2), two = *cache->reserve_pages(3);
  const std::vector<const KvPages*> pages{&one, &two};
  const uint64_t before = cache->reserved_bytes();
  // A prompt of 90 tokens, of which 80 are shared, and up to 200 positions.
  auto kv = cache->reserve(200, {}, {90, 90}, 91, pages).value();
  CHECK(kv->shared_blocks == 5);
  CHECK(kv->positions() == 96);
  CHECK(cache->reserved_bytes() >= before + kLayers * block);
  CHECK(cache->reserved_bytes() <= before + kLayers * round_up(block, kIoAlignment));
  REQUIRE(cache->grow(*kv, 130));
  CHECK(kv->positions() >= 130);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const KvSequence::Place& place = kv->place(layer);
    // Shared blocks come first in the table, wherever its own are.
    const std::vector<uint64_t> first = blocks_of(one.runs[static_cast<size_t>(layer)]);
    REQUIRE(place.table.size() >= 5);
    CHECK(place.table[1] == place.table[0] + (first[1] - first[0]));
    const auto own = static_cast<size_t>(kv_blocks(kv->positions())) - 5;
    CHECK(place.table.size() == 5 + (place.tier == Tier::kDisk ? 0 : own));
    std::vector<KvCache::RunPart> parts;
    // A chunk that is shared blocks alone needs none of its own.
    cache->find_parts(*kv, layer, 0, 80, &parts);
    CHECK(parts.empty());
    std::vector<ByteRange> changes;
    cache->find_changes(*kv, layer, nullptr, 0, 80, &changes);
    CHECK(changes.empty());
    cache->find_changes(*kv, layer, nullptr, 40, 20, &changes);
    CHECK(changes.empty());
    cache->find_parts(*kv, layer, 80, 10, &parts);
    REQUIRE(parts.size() == 1);
    CHECK(parts[0].filled == 0);
    CHECK(parts[0].needed == block);
    cache->find_changes(*kv, layer, nullptr, 60, 30, &changes);
    REQUIRE(changes.size() == 1);
    CHECK(changes[0].from == 0);
    CHECK(changes[0].to == block);
    cache->find_changes(*kv, layer, nullptr, 97, 1, &changes);
    REQUIRE(changes.size() == 1);
    CHECK(changes[0].from == block);
    CHECK(changes[0].to == 2 * block);
    // A step with a draft that reaches into the next block.
    cache->find_changes(*kv, layer, nullptr, 110, 4, &changes);
    REQUIRE(changes.size() == 1);
    CHECK(changes[0].from == block);
    CHECK(changes[0].to == 3 * block);
    CHECK(cache->used_bytes(*kv, layer, 97, false) == 2 * block);
    CHECK(cache->used_bytes(*kv, layer, 33, false) == 0);
  }
  cache->release(std::move(kv));
  CHECK(cache->reserved_bytes() == before);
  cache->release(one);
  cache->release(two);
  cache->verify();
}

}  // namespace
}  // namespace spillway::kv_sequence_test
