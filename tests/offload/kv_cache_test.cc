// The KV cache's reservations against a random workload on both tiers: no overlap, no leak, merged
// free space, shares as the sizes have them.
#include "offload/kv_cache.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

namespace spillway {
namespace {

constexpr int64_t kLayers = 5;

std::unique_ptr<KvCache> open(Device& device, const KvLayout& layout, uint64_t memory,
                              uint64_t disk) {
  return KvCache::open(device, {layout, kLayers, memory, disk}).value();
}

bool apart(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a + a_bytes <= b || b + b_bytes <= a;
}

TEST_CASE("reservations never overlap and all room comes back") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 8, DType::kF16};
  const uint64_t total = layout.sequence_bytes(16) * kLayers * 40;
  const auto seed = GENERATE(1u, 2u, 3u, 4u);
  const auto disk_tenths = GENERATE(0u, 3u, 10u);
  INFO("seed " << seed << ", " << disk_tenths << " tenths on disk");
  const uint64_t disk = total * disk_tenths / 10;
  // A layer on disk takes whole sectors.
  const auto cache = open(*device, layout, total - disk, disk * 4);
  std::mt19937 random(seed);
  std::vector<std::unique_ptr<KvSequence>> held;
  int refused = 0;
  for (int step = 0; step < 2000; ++step) {
    if (held.empty() || random() % 5 < 3) {
      const auto rows = static_cast<int64_t>(1 + random() % 90);
      Result<std::unique_ptr<KvSequence>> got = cache->reserve(rows);
      if (!got.ok()) {
        CHECK(got.status().code() == Code::kCapacity);
        ++refused;
      } else {
        const KvSequence& a = *got.value();
        CHECK(a.memory_bytes() / layout.sequence_bytes(rows) +
                  static_cast<uint64_t>(a.disk_layers()) ==
              static_cast<uint64_t>(kLayers));
        for (const auto& b : held) {
          CHECK(apart(a.memory_offset, a.memory_bytes(), b->memory_offset, b->memory_bytes()));
          CHECK(apart(a.disk_offset, a.disk_bytes(), b->disk_offset, b->disk_bytes()));
        }
        held.push_back(std::move(got).value());
      }
    } else {
      const size_t index = random() % held.size();
      cache->release(std::move(held[index]));
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(index));
    }
    cache->verify();
  }
  CHECK(refused > 0);
  for (auto& sequence : held) cache->release(std::move(sequence));
  cache->verify();
  CHECK(cache->reserved_bytes() == 0);
}

TEST_CASE("everything released is one stretch again") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 8, DType::kF16};
  const auto cache = open(*device, layout, layout.sequence_bytes(16) * kLayers * 40, 0);
  std::vector<std::unique_ptr<KvSequence>> held;
  for (int i = 0; i < 40; ++i) held.push_back(cache->reserve(16).value());
  CHECK_FALSE(cache->reserve(16).ok());
  for (auto& sequence : held) cache->release(std::move(sequence));
  CHECK(cache->reserve(16 * 40).ok());
}

TEST_CASE("layers of a reservation lie apart, and those on disk are spread") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{4, 16, DType::kF32};
  const uint64_t bytes = layout.sequence_bytes(100);
  for (int64_t on_disk = 0; on_disk <= kLayers; ++on_disk) {
    INFO(on_disk << " layers on disk");
    const auto count = static_cast<uint64_t>(on_disk);
    const auto cache =
        open(*device, layout, bytes * (kLayers - count), (bytes + kIoAlignment) * count);
    const auto kv = cache->reserve(100).value();
    CHECK(kv->disk_layers() == on_disk);
    std::byte* last = nullptr;
    int64_t found = 0, gap = 0, gap_max = 0;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      if (kv->on_disk(layer)) {
        const SpillUse use = cache->use(*kv, layer, 40, 1);
        CHECK(use.object->offset % kIoAlignment == 0);
        CHECK(use.read_bytes == layout.sequence_bytes(40));
        CHECK(use.bytes >= layout.sequence_bytes(41));
        ++found;
        gap = 0;
        continue;
      }
      gap_max = std::max(gap_max, ++gap);
      std::byte* data = cache->layer(*kv, layer);
      if (last != nullptr) CHECK(data - last == static_cast<std::ptrdiff_t>(bytes));
      last = data;
    }
    CHECK(found == on_disk);
    if (on_disk > 0) CHECK(gap_max <= (kLayers + on_disk - 1) / on_disk);
  }
}

TEST_CASE("the share on disk follows the sizes to within one layer") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{4, 32, DType::kF32};  // Blocks are whole sectors.
  REQUIRE(layout.block_bytes() % kIoAlignment == 0);
  const auto percent = GENERATE(0u, 10u, 37u, 50u, 99u, 100u);
  const uint64_t total = layout.sequence_bytes(16) * kLayers * 1000;
  const auto cache = open(*device, layout, total * (100 - percent) / 100, total * percent / 100);
  std::mt19937 random(percent);
  std::vector<std::unique_ptr<KvSequence>> held;
  double disk = 0, all = 0;
  for (int i = 0; i < 60; ++i) {
    held.push_back(cache->reserve(static_cast<int64_t>(1 + random() % 100)).value());
    disk += static_cast<double>(held.back()->disk_bytes());
    all += static_cast<double>(held.back()->disk_bytes() + held.back()->memory_bytes());
    const double layer = static_cast<double>(layout.sequence_bytes(112));
    INFO(percent << " %, sequence " << i);
    CHECK(std::abs(disk - all * percent / 100) <= layer);
  }
}

}  // namespace
}  // namespace spillway
