// The KV cache's reservations against a random workload on both tiers: no overlap, no leak, merged
// free space, shares as the sizes have them.
#include "offload/kv_cache.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <utility>

namespace spillway::kv_cache_test {
namespace {

constexpr int64_t kLayers = 5;

KvCacheOptions sized(const KvLayout& layout, uint64_t memory, uint64_t disk, uint64_t staging = 0) {
  KvCacheOptions options;
  options.layout = layout;
  options.layers = {0, kLayers};
  options.memory_bytes = memory;
  options.disk_bytes = disk;
  options.staging_bytes = staging;
  return options;
}

std::unique_ptr<KvCache> open(Device& device, const KvLayout& layout, uint64_t memory,
                              uint64_t disk) {
  return KvCache::open(device, sized(layout, memory, disk)).value();
}

// Whether no run of two sequences overlaps.
bool apart(const KvSequence& a, const KvSequence& b) {
  for (const KvSequence::Place& one : a.places) {
    for (const KvSequence::Place& other : b.places) {
      if (one.tier != other.tier) continue;
      for (const KvRun& run : one.runs) {
        for (const KvRun& than : other.runs) {
          const bool before = run.offset + run.bytes <= than.offset;
          if (!before && than.offset + than.bytes > run.offset) return false;
        }
      }
    }
  }
  return true;
}

// A layer's rows, whose blocks lie in one piece.
std::byte* rows_of(const KvCache& cache, const KvSequence& kv, int64_t layer) {
  CHECK(kv.place(layer).runs.size() == 1);
  const KvCache::Layer at = cache.layer(kv, layer);
  return at.rows.block(0, cache.layout().block_bytes());
}

// The one use of a layer on disk in one piece.
SpillUse use_of(const KvCache& cache, KvSequence& kv, int64_t layer, int64_t position,
                int64_t tokens) {
  std::vector<SpillUse> uses;
  cache.add_uses(kv, layer, position, tokens, &uses);
  REQUIRE(uses.size() == 1);
  return uses.front();
}

TEST_CASE("reservations never overlap and all room comes back") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 8, Format::kF16};
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
  size_t pieces = 0;
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
        for (const auto& b : held) CHECK(apart(a, *b));
        for (const KvSequence::Place& place : a.places) {
          int64_t blocks = 0;
          for (const KvRun& run : place.runs) blocks += run.blocks;
          CHECK(blocks == kv_blocks(rows));
          CHECK(place.table.size() == static_cast<size_t>(place.tier == Tier::kDisk ? 0 : blocks));
          CHECK(place.spilled.size() == (place.tier == Tier::kDisk ? place.runs.size() : 0));
          pieces = std::max(pieces, place.runs.size());
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
  if (disk_tenths < 10) CHECK(pieces > 1);  // Room in pieces is used.
  for (auto& sequence : held) cache->release(std::move(sequence));
  cache->verify();
  CHECK(cache->reserved_bytes() == 0);
}

TEST_CASE("room in pieces is room for a layer that keeps every row") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 8, Format::kF16};
  const uint64_t block = layout.block_bytes();
  const auto cache = open(*device, layout, block * kLayers * 12, 0);
  std::vector<std::unique_ptr<KvSequence>> held;
  for (int i = 0; i < 12; ++i) held.push_back(cache->reserve(16).value());
  for (size_t i = 0; i < held.size(); i += 2) cache->release(std::move(held[i]));
  // Six blocks of every layer are free, each between two that are not.
  CHECK_FALSE(cache->reserve(5000, {10, 90, true}).ok());  // Seven blocks, and in one piece
  const auto kv = cache->reserve(6 * 16).value();
  CHECK(cache->reserved_bytes() == cache->total_bytes());
  std::vector<std::byte*> seen;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const KvCache::Layer at = cache->layer(*kv, layer);
    REQUIRE(at.rows.table != nullptr);
    size_t next = 0;
    for (size_t run = 0; run < kv->place(layer).runs.size(); ++run) {
      for (int64_t b = 0; b < kv->place(layer).runs[run].blocks; ++b) {
        std::byte* expected = cache->run_at(*kv, layer, run) + static_cast<uint64_t>(b) * block;
        CHECK(at.rows.table[next] == expected);
        seen.push_back(at.rows.table[next++]);
      }
    }
    CHECK(next == 6);
  }
  std::sort(seen.begin(), seen.end());
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
  // What a sweep needs of the runs, in their order: a step at position 40 fills three blocks.
  std::vector<KvCache::RunPart> parts;
  cache->find_parts(*kv, 0, 40, 1, &parts);
  int64_t blocks = 0;
  uint64_t filled = 0, needed = 0;
  for (const KvCache::RunPart& part : parts) {
    blocks += part.blocks;
    filled += part.filled;
    needed += part.needed;
  }
  CHECK(blocks == 3);
  CHECK(filled == 3 * block);
  CHECK(needed == 3 * block);
  cache->find_parts(*kv, 0, 48, 1, &parts);
  filled = needed = 0;
  for (const KvCache::RunPart& part : parts) filled += part.filled, needed += part.needed;
  CHECK(filled == 3 * block);
  CHECK(needed == 4 * block);
}

TEST_CASE("a long layer on disk goes in parts, and the staging has room for them") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{8, 128, Format::kF16};  // Blocks of 64 KiB
  const int64_t rows = 16 * 100;
  const auto cache = open(*device, layout, 0, uint64_t{64} << 20);
  auto kv = cache->reserve(rows).value();
  CHECK(kv->kind(0).staged_bytes() == kv->kind(0).disk_bytes + (uint64_t{2} << 20));
  std::vector<SpillUse> uses;
  cache->add_uses(*kv, 0, 16 * 70 + 3, 1, &uses);
  REQUIRE(uses.size() == 3);  // 71 blocks of runs of 32
  CHECK(uses[0].read_bytes == 32 * layout.block_bytes());
  CHECK(uses[2].read_bytes == 7 * layout.block_bytes());
  CHECK(uses[2].bytes == 7 * layout.block_bytes());
  CHECK(uses[1].object->offset % kIoAlignment == 0);
  CHECK(uses[1].object->owner == kv.get());
  cache->release(std::move(kv));
}

TEST_CASE("everything released is one stretch again") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 8, Format::kF16};
  const auto cache = open(*device, layout, layout.sequence_bytes(16) * kLayers * 40, 0);
  std::vector<std::unique_ptr<KvSequence>> held;
  for (int i = 0; i < 40; ++i) held.push_back(cache->reserve(16).value());
  CHECK_FALSE(cache->reserve(16).ok());
  for (auto& sequence : held) cache->release(std::move(sequence));
  CHECK(cache->reserve(16 * 40).ok());
}

TEST_CASE("layers of a reservation lie apart, and those on disk are spread") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{4, 16, Format::kF32};
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
        const SpillUse use = use_of(*cache, *kv, layer, 40, 1);
        CHECK(use.object->offset % kIoAlignment == 0);
        CHECK(use.read_bytes == layout.sequence_bytes(40));
        CHECK(use.bytes >= layout.sequence_bytes(41));
        ++found;
        gap = 0;
        continue;
      }
      gap_max = std::max(gap_max, ++gap);
      std::byte* data = rows_of(*cache, *kv, layer);
      CHECK(cache->layer(*kv, layer).state == nullptr);
      if (last != nullptr) CHECK(data - last == static_cast<std::ptrdiff_t>(bytes));
      last = data;
    }
    CHECK(found == on_disk);
    if (on_disk > 0) CHECK(gap_max <= (kLayers + on_disk - 1) / on_disk);
  }
}

TEST_CASE("the share on disk follows the sizes to within one layer") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{4, 32, Format::kF32};  // Blocks are whole sectors.
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

TEST_CASE("a limited budget takes the rows that it keeps, and what it remembers in front of them") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 8, Format::kF16};
  const KvBudget budget{10, 20, true};
  const uint64_t rows = layout.sequence_bytes(31);
  const uint64_t state = KvStateLayout{2, budget}.bytes();
  const auto cache = open(*device, layout, (state + rows) * 3, (kIoAlignment + rows + 4096) * 2);
  CHECK(cache->sequence_bytes(5000, budget) == (state + rows) * kLayers);
  const auto kv = cache->reserve(5000, budget).value();
  REQUIRE(kv->disk_layers() == 2);
  std::byte* last = nullptr;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    if (kv->on_disk(layer)) continue;
    const KvCache::Layer at = cache->layer(*kv, layer);
    CHECK(at.rows.first - at.state == static_cast<std::ptrdiff_t>(state));
    if (last != nullptr) CHECK(at.state >= last + rows);
    last = at.rows.first;
  }
}

// A decode step changes the state, the block of its own row, and those into which rows moved.
TEST_CASE("what a step has changed is found by whole blocks") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 64, Format::kF32};
  const KvBudget budget{40, 60, true};  // 101 slots in 7 blocks, the ring in the first 3
  const uint64_t block = layout.block_bytes();
  const auto cache = open(*device, layout, 0, uint64_t{1} << 24);
  auto kv = cache->reserve(1000, budget).value();
  const uint64_t head = kv->kind(0).disk_state_bytes();
  const SpillUse use = use_of(*cache, *kv, 0, 500, 1);
  CHECK(use.read_bytes == head + layout.sequence_bytes(101));
  std::vector<std::byte> memory(use.bytes);
  const KvCache::Layer staged = KvCache::layer_at(*kv, 0, memory.data());
  const auto changes_of = [&](int32_t moved_a, int32_t moved_b) {
    *cache->state_layout(*kv, 0).head(staged.state, 0).moved = moved_a;
    *cache->state_layout(*kv, 0).head(staged.state, 1).moved = moved_b;
    std::vector<ByteRange> changes;
    cache->find_changes(*kv, 0, staged.state, 500, 1, &changes);
    std::vector<std::pair<uint64_t, uint64_t>> blocks;  // Behind the state
    CHECK(changes.front().from == 0);
    for (const ByteRange& change : changes) {
      if (change.to > head) {
        blocks.push_back(
            {(std::max(change.from, head) - head) / block, (change.to - head) / block});
      }
    }
    return blocks;
  };
  // Position 500 is in slot 500 mod 41 = 8.
  using Blocks = std::vector<std::pair<uint64_t, uint64_t>>;
  CHECK(changes_of(-1, -1) == Blocks{{0, 1}});
  CHECK(changes_of(100, -1) == Blocks{{0, 1}, {6, 7}});
  CHECK(changes_of(70, 70) == Blocks{{0, 1}, {4, 5}});
  CHECK(changes_of(64, 63) == Blocks{{0, 1}, {3, 5}});
  cache->release(std::move(kv));
}

TEST_CASE("layers of a reservation over three tiers lie apart, each tier's spread evenly") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{4, 16, Format::kF32};
  const uint64_t bytes = layout.sequence_bytes(100);
  for (int64_t on_disk = 0; on_disk <= kLayers; ++on_disk) {
    for (int64_t on_host = 0; on_host + on_disk <= kLayers; ++on_host) {
      INFO(on_disk << " layers on disk, " << on_host << " on the host");
      const auto disk = static_cast<uint64_t>(on_disk), host = static_cast<uint64_t>(on_host);
      KvCacheOptions options = sized(layout, bytes * (kLayers - disk - host),
                                     (bytes + kIoAlignment) * disk, 2 * (bytes + kIoAlignment));
      options.host_bytes = bytes * host;
      options.device_staging_bytes = 2 * (bytes + kIoAlignment);
      const auto cache = KvCache::open(*device, options).value();
      CHECK(cache->check_holds(100).ok());
      auto kv = cache->reserve(100).value();
      CHECK_FALSE(cache->reserve(100).ok());
      int64_t count[3] = {0, 0, 0};
      std::byte* last[3] = {nullptr, nullptr, nullptr};
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        const auto tier = static_cast<size_t>(kv->tier(layer));
        ++count[tier];
        if (kv->tier(layer) == Tier::kDisk) continue;
        std::byte* data = rows_of(*cache, *kv, layer);
        if (last[tier] != nullptr) CHECK(data - last[tier] == static_cast<std::ptrdiff_t>(bytes));
        last[tier] = data;
      }
      CHECK(count[static_cast<size_t>(Tier::kHost)] == on_host);
      CHECK(count[static_cast<size_t>(Tier::kDisk)] == on_disk);
      cache->release(std::move(kv));
      CHECK(cache->reserved_bytes() == 0);
      cache->verify();
    }
  }
}

TEST_CASE("a cache of layers in the middle of a model knows them by their numbers there") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{4, 16, Format::kF32};
  const uint64_t bytes = layout.sequence_bytes(100);
  KvCacheOptions options =
      sized(layout, bytes * 2, (bytes + kIoAlignment) * 2, bytes + kIoAlignment);
  options.host_bytes = bytes;
  const auto first = KvCache::open(*device, options).value();
  options.layers = {7, kLayers};
  const auto middle = KvCache::open(*device, options).value();
  auto a = first->reserve(100).value(), b = middle->reserve(100).value();
  // By layer: where it is, from the first one on its tier.
  const auto places = [](const KvCache& cache, KvSequence& kv) {
    std::vector<uint64_t> found;
    const std::byte* memory[2] = {nullptr, nullptr};
    for (int64_t layer = kv.layers.first; layer < kv.layers.end(); ++layer) {
      if (kv.on_disk(layer)) {
        found.push_back(use_of(cache, kv, layer, 0, 1).object->offset);
        continue;
      }
      const std::byte*& first_there = memory[static_cast<size_t>(kv.tier(layer))];
      const std::byte* here = rows_of(cache, kv, layer);
      if (first_there == nullptr) first_there = here;
      found.push_back(static_cast<uint64_t>(here - first_there));
    }
    return found;
  };
  for (int64_t layer = 0; layer < kLayers; ++layer) CHECK(a->tier(layer) == b->tier(7 + layer));
  CHECK(places(*first, *a) == places(*middle, *b));
  CHECK(a->disk_layers() == 2);
  CHECK(a->host_layers() == 1);
  first->release(std::move(a));
  middle->release(std::move(b));
}

// Many splits are tried before one fits: what one of them took is given back when another tier has
// no room for its part.
TEST_CASE("reservations over three tiers leave nothing behind, whatever was tried") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 8, Format::kF16};
  const uint64_t layer = layout.sequence_bytes(16);
  KvCacheOptions options = sized(layout, 31 * layer, 17 * kIoAlignment, 8 * kIoAlignment);
  options.host_bytes = 23 * layer;
  options.device_staging_bytes = 8 * kIoAlignment;
  const auto cache = KvCache::open(*device, options).value();
  std::mt19937 random(GENERATE(1u, 2u, 3u, 4u));
  std::vector<std::unique_ptr<KvSequence>> held;
  int refused = 0;
  for (int step = 0; step < 1000; ++step) {
    if (held.empty() || random() % 5 < 3) {
      auto got = cache->reserve(static_cast<int64_t>(1 + random() % 40));
      refused += got.ok() ? 0 : 1;
      if (got.ok()) held.push_back(std::move(got).value());
    } else {
      const size_t index = random() % held.size();
      cache->release(std::move(held[index]));
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(index));
    }
    uint64_t taken = 0;
    for (const auto& one : held)
      taken += one->memory_bytes() + one->host_bytes() + one->disk_bytes();
    REQUIRE(cache->reserved_bytes() == taken);
    cache->verify();
  }
  CHECK(refused > 0);
  for (auto& sequence : held) cache->release(std::move(sequence));
  CHECK(cache->reserved_bytes() == 0);
}

TEST_CASE("a sequence that can never be held is refused, by what is too small") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 8, Format::kF16};
  const uint64_t layer = layout.sequence_bytes(64);
  const auto message = [](const KvCache& cache, int64_t rows) {
    const Status status = cache.check_holds(rows);
    return status.ok() ? std::string() : std::string(status.message());
  };
  const auto memory = open(*device, layout, kLayers * layer, 0);
  CHECK(message(*memory, 64) == "");
  CHECK_THAT(message(*memory, 65), Catch::Contains("of KV cache, and there are"));
  // One layer at a time passes through the staging.
  // Several parts may have to go around the end of a ring.
  const uint64_t staged = 2 * ((layer + kIoAlignment - 1) / kIoAlignment * kIoAlignment);
  KvCacheOptions options = sized(layout, 0, 100 * kIoAlignment, staged);
  CHECK(message(*KvCache::open(*device, options).value(), 64) == "");
  options.staging_bytes = staged - kIoAlignment;
  if (options.staging_bytes == 0) options.staging_bytes = 512;
  CHECK_THAT(message(*KvCache::open(*device, options).value(), 64),
             Catch::Contains("on its way from disk"));
}

// Layers 1, 3 and 4 have a window.
KvCacheOptions with_window(const KvLayout& layout, int64_t window) {
  KvCacheOptions options = sized(layout, 0, 0);
  options.window = window;
  options.windowed = {0, 1, 0, 1, 1};
  options.staging_bytes = options.device_staging_bytes = uint64_t{1} << 20;
  return options;
}

TEST_CASE("a layer with a window takes the window's rows alone") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 8, Format::kF16};
  KvCacheOptions options = with_window(layout, 20);
  options.memory_bytes = uint64_t{1} << 20;
  const auto cache = KvCache::open(*device, options).value();
  const uint64_t full = layout.sequence_bytes(500), few = layout.sequence_bytes(20);
  CHECK(cache->sequence_bytes(500) == 2 * full + 3 * few);
  CHECK(cache->sequence_bytes(20) == 5 * few);
  const KvBudget heavy{10, 40, true};
  const uint64_t kept = layout.sequence_bytes(51) + KvStateLayout{2, heavy}.bytes();
  CHECK(cache->sequence_bytes(500, heavy) == 2 * kept + 3 * few);
  // A prompt in chunks of 30: a ring of the window and a chunk
  CHECK(cache->sequence_bytes(500, {}, {400, 30}) == 2 * full + 3 * layout.sequence_bytes(64));
  CHECK(cache->sequence_bytes(500, {}, 400) == 2 * full + 3 * layout.sequence_bytes(400));

  const auto kv = cache->reserve(500, heavy).value();
  CHECK(kv->budget(0) == heavy);
  CHECK(kv->budget(1) == KvBudget{19});
  CHECK(kv->memory_bytes() == 2 * kept + 3 * few);
  const std::byte* end = cache->layer(*kv, 0).state;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const KvCache::Layer at = cache->layer(*kv, layer);
    CHECK((at.state == nullptr) == (kv->budget(layer) == KvBudget{19}));
    const std::byte* begin = at.state == nullptr ? at.rows.first : at.state;
    CHECK(begin == end);
    end = begin + (at.state == nullptr ? few : kept);
  }

  options.windowed.clear();  // All layers have it.
  const auto all = KvCache::open(*device, options).value();
  CHECK(all->sequence_bytes(500) == 5 * few);
  CHECK(all->sequences_at_once(500) == static_cast<int64_t>(options.memory_bytes / (5 * few)));
}

TEST_CASE("layers of two sizes share every tier, and what fits is what is promised") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 64, Format::kF32};
  std::mt19937 random(GENERATE(1u, 2u, 3u, 4u, 5u, 6u));
  const auto share = [&] { return uint64_t{random() % 4} * layout.sequence_bytes(16) * 7; };
  KvCacheOptions options = with_window(layout, 40);
  options.memory_bytes = share() + layout.sequence_bytes(16) * 5;
  options.host_bytes = share();
  options.disk_bytes = (share() + kIoAlignment - 1) / kIoAlignment * kIoAlignment;
  const auto cache = KvCache::open(*device, options).value();
  for (const int64_t rows : {10, 90, 200, 400}) {
    INFO(rows << " rows");
    const int64_t promised = cache->sequences_at_once(rows);
    CHECK(cache->check_holds(rows).ok() == (promised > 0));
    std::vector<std::unique_ptr<KvSequence>> held;
    for (auto got = cache->reserve(rows); got.ok(); got = cache->reserve(rows)) {
      held.push_back(std::move(got).value());
      const KvSequence& one = *held.back();
      uint64_t bytes[3] = {0, 0, 0};
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        const KvSequence::Kind& kind = one.kind(layer);
        bytes[static_cast<size_t>(one.tier(layer))] +=
            one.on_disk(layer) ? kind.disk_bytes : kind.memory_bytes;
      }
      CHECK(bytes[0] == one.memory_bytes());
      CHECK(bytes[1] == one.host_bytes());
      CHECK(bytes[2] == one.disk_bytes());
      cache->verify();
    }
    CHECK(static_cast<int64_t>(held.size()) == promised);
    for (auto& one : held) cache->release(std::move(one));
    CHECK(cache->reserved_bytes() == 0);
  }
}

TEST_CASE("a chunk changes two ends of a ring, in whole blocks") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 64, Format::kF32};
  KvCacheOptions options = with_window(layout, 20);
  options.disk_bytes = uint64_t{1} << 24;
  const auto cache = KvCache::open(*device, options).value();
  auto kv = cache->reserve(1000, {}, {900, 40}).value();  // A ring of 64
  const uint64_t block = layout.block_bytes();
  std::vector<std::byte> memory(cache->staged_layer_bytes(1000, {}, {900, 40}));
  const auto changes = [&](int64_t position, int64_t tokens) {
    std::vector<ByteRange> found;
    cache->find_changes(*kv, 1, nullptr, position, tokens, &found);
    std::vector<std::pair<uint64_t, uint64_t>> blocks;
    for (const ByteRange& range : found) blocks.push_back({range.from / block, range.to / block});
    return blocks;
  };
  using Blocks = std::vector<std::pair<uint64_t, uint64_t>>;
  CHECK(changes(0, 40) == Blocks{{0, 3}});
  CHECK(changes(40, 24) == Blocks{{2, 4}});
  CHECK(changes(40, 40) == Blocks{{0, 1}, {2, 4}});
  CHECK(changes(120, 20) == Blocks{{0, 1}, {3, 4}});
  CHECK(changes(104, 40) == Blocks{{0, 1}, {2, 4}});
  CHECK(changes(120, 40) == Blocks{{0, 2}, {3, 4}});
  CHECK(changes(127, 40) == Blocks{{0, 4}});
  CHECK(changes(870, 30) == Blocks{{0, 2}});  // The prompt's end: the window's rows alone stay.
  CHECK(cache->used_bytes(*kv, 1, 50, true) == 4 * block);
  CHECK(cache->used_bytes(*kv, 1, 500, true) == 4 * block);
  CHECK(cache->needed_bytes(*kv, 1, 870, 30, true) == 4 * block);
  CHECK(cache->used_bytes(*kv, 1, 900, true) == 2 * block);
  CHECK(cache->used_bytes(*kv, 0, 500, true) == layout.sequence_bytes(500));
}

}  // namespace
}  // namespace spillway::kv_cache_test
