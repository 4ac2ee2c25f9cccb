// The KV cache's reservations against a random workload: no overlap, no leak, merged free space.
#include "offload/kv_cache.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

namespace spillway {
namespace {

TEST_CASE("reservations never overlap and all memory comes back") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 8, DType::kF16};
  constexpr int64_t kLayers = 3;
  const uint64_t total = layout.sequence_bytes(16) * kLayers * 40;
  const auto cache = KvCache::open(*device, layout, kLayers, total).value();
  const auto seed = GENERATE(1u, 2u, 3u, 4u);
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::vector<KvReservation> held;
  int refused = 0;
  for (int step = 0; step < 2000; ++step) {
    if (held.empty() || random() % 5 < 3) {
      const auto rows = static_cast<int64_t>(1 + random() % 90);
      const Result<KvReservation> got = cache->reserve(rows);
      if (!got.ok()) {
        CHECK(got.status().code() == Code::kCapacity);
        ++refused;
      } else {
        CHECK(got->bytes == cache->sequence_bytes(rows));
        for (const KvReservation& other : held) {
          CHECK((got->offset + got->bytes <= other.offset ||
                 other.offset + other.bytes <= got->offset));
        }
        held.push_back(got.value());
      }
    } else {
      const size_t index = random() % held.size();
      cache->release(held[index]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(index));
    }
    cache->verify();
  }
  CHECK(refused > 0);
  for (const KvReservation& reservation : held) cache->release(reservation);
  cache->verify();
  CHECK(cache->reserved_bytes() == 0);
  // Everything merged again: one sequence can have it all.
  CHECK(cache->reserve(16 * 40).ok());
}

TEST_CASE("layers of a reservation lie apart inside it") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{4, 16, DType::kF32};
  const auto cache = KvCache::open(*device, layout, 5, layout.sequence_bytes(100) * 5).value();
  const KvReservation kv = cache->reserve(100).value();
  for (int64_t layer = 1; layer < 5; ++layer) {
    CHECK(cache->layer(kv, layer) - cache->layer(kv, layer - 1) ==
          static_cast<std::ptrdiff_t>(layout.sequence_bytes(100)));
  }
}

}  // namespace
}  // namespace spillway
