// Pieces of the ring never overlap while they are taken, and what bytes_for() promises fits.
#include "offload/io/staging_ring.h"

#include <catch2/catch.hpp>
#include <deque>
#include <random>

#include "offload/io/aligned_bytes.h"

namespace spillway::staging_ring_test {
namespace {

struct Piece {
  std::byte* data;
  uint64_t bytes;
};

TEST_CASE("pieces taken and given back in order never overlap") {
  const auto seed = GENERATE(1u, 2u, 3u, 4u, 5u);
  INFO("seed " << seed);
  std::mt19937 random(seed);
  AlignedBytes memory;
  constexpr uint64_t kPages = 37;
  const std::span<std::byte> all = memory.reserve(kPages * 4096);
  StagingRing ring(all.first(kPages * 4096));
  std::deque<Piece> taken;
  uint64_t held = 0;
  for (int step = 0; step < 5000; ++step) {
    const uint64_t bytes = 1 + random() % (9 * 4096);
    if (std::byte* data = ring.take(bytes)) {
      CHECK(data >= all.data());
      CHECK(data + bytes <= all.data() + ring.bytes());
      for (const Piece& other : taken) {
        CHECK((data + bytes <= other.data || other.data + other.bytes <= data));
      }
      taken.push_back({data, bytes});
      held += bytes;
    } else {
      // Refused only when little is free, and never when nothing is taken.
      REQUIRE_FALSE(taken.empty());
    }
    if (!taken.empty() && random() % 2 == 0) {
      held -= taken.front().bytes;
      taken.pop_front();
      ring.give_back();
    }
  }
  while (!taken.empty()) {
    taken.pop_front();
    ring.give_back();
  }
  CHECK(ring.take(kPages * 4096) == all.data());
}

TEST_CASE("a ring of bytes_for() holds a group wherever its head stands") {
  constexpr uint64_t kPiece = 5 * 4096, kGroup = 4 * kPiece;
  AlignedBytes memory;
  const uint64_t bytes = StagingRing::bytes_for(kGroup, kPiece);
  StagingRing ring(memory.reserve(bytes).first(bytes));
  for (uint64_t shift = 0; shift < bytes / 4096; ++shift) {
    INFO("head at page " << shift);
    ring.clear();
    REQUIRE(ring.take(4096) != nullptr);  // Moves the head without letting the ring start anew.
    for (uint64_t i = 0; i < shift; ++i) {
      REQUIRE(ring.take(4096) != nullptr);
      ring.give_back();
    }
    ring.give_back();
    for (int i = 0; i < 4; ++i) CHECK(ring.take(kPiece) != nullptr);
  }
}

}  // namespace
}  // namespace spillway::staging_ring_test
