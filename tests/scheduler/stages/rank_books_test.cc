#include "scheduler/stages/rank_books.h"

#include <catch2/catch.hpp>

namespace spillway::rank_books_test {
namespace {

constexpr uint64_t kBlock = 2 * 16 * 4 * sizeof(float);  // Of a layer: 16 rows of a head of 4

KvCacheOptions cache_of(int64_t layers, uint64_t blocks) {
  KvCacheOptions cache;
  cache.layout = {1, 4, Format::kF32};
  cache.layers = {0, layers};
  cache.memory_bytes = static_cast<uint64_t>(layers) * blocks * kBlock;
  return cache;
}

// Sequences are known by their addresses alone.
const KvSequence* sequence(int64_t number) {
  return reinterpret_cast<const KvSequence*>(number * 64);
}

TEST_CASE("books count the caches of all ranks, and name the one that is full") {
  RankBooks books = RankBooks::open({cache_of(2, 8), cache_of(3, 4)}).value();
  CHECK(books.sequence_bytes(32, {}, {}) == 5 * 2 * kBlock);
  CHECK(books.check_holds(64, {}, {}).ok());
  const Status never = books.check_holds(65, {}, {});
  CHECK_THAT(std::string(never.message()), Catch::StartsWith("rank 2: "));
  REQUIRE(books.reserve(sequence(1), 48, {}, {}).ok());
  const Status full = books.reserve(sequence(2), 32, {}, {});
  CHECK(full.code() == Code::kCapacity);
  CHECK_THAT(std::string(full.message()), Catch::StartsWith("rank 2: "));
  // What rank 1 had reserved for it is free again.
  REQUIRE(books.reserve(sequence(2), 16, {}, {}).ok());
  books.release(sequence(1));
  CHECK(books.reserve(sequence(3), 48, {}, {}).ok());
}

TEST_CASE("a sweep tells the changes since the last one that was told, in their order") {
  RankBooks books = RankBooks::open({cache_of(1, 8)}).value();
  REQUIRE(books.reserve(sequence(1), 20, {}, {9, 4}).ok());
  REQUIRE(books.reserve(sequence(2), 30, {}, {}).ok());
  const std::vector<int32_t> tokens = {5, 6, 7};
  // Only the address of a sequence's cache is read.
  auto* const first = const_cast<KvSequence*>(sequence(1));
  auto* const second = const_cast<KvSequence*>(sequence(2));
  const std::vector<SweepItem> items = {
      {.tokens = std::span(tokens).first(2), .prompt = 9, .kv = first, .no_logits = true},
      {.tokens = std::span(tokens).last(1), .position = 4, .kv = second, .all_logits = true}};
  for (int twice = 0; twice < 2; ++twice) {
    const StageSweep sweep = books.sweep_of(items);
    REQUIRE(sweep.changes.size() == 2);
    CHECK(sweep.changes[0].rows == 20);
    CHECK(sweep.changes[0].chunk_prompt == 9);
    CHECK_FALSE(sweep.changes[1].release);
    REQUIRE(sweep.items.size() == 2);
    CHECK(sweep.items[0].id == sweep.changes[0].id);
    CHECK(sweep.items[0].logits == StageLogits::kNone);
    CHECK(sweep.items[1].id == sweep.changes[1].id);
    CHECK(sweep.items[1].position == 4);
    CHECK(sweep.items[1].logits == StageLogits::kAll);
    CHECK(sweep.tokens == tokens);
  }
  books.told();
  books.release(sequence(1));
  const StageSweep later = books.sweep_of(std::span(items).last(1));
  REQUIRE(later.changes.size() == 1);
  CHECK(later.changes[0].release);
  CHECK(later.items.size() == 1);
}

}  // namespace
}  // namespace spillway::rank_books_test
