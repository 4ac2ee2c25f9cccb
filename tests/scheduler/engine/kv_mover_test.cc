#include "scheduler/engine/kv_mover.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "tests/support/fake_io.h"

namespace spillway::kv_mover_test {
namespace {

using test::FakeIo;

constexpr int64_t kLayers = 3;

// A cache of blocks of 128 KiB in memory, on disk and aside.
struct Fixture {
  explicit Fixture(FakeIo& io) : transfers(io, nullptr) {
    options.layout = {16, 128, Format::kF16};
    options.layers = {0, kLayers};
    const uint64_t bytes = options.layout.sequence_bytes(kRows) * kLayers;
    options.memory_bytes = bytes;
    options.disk_bytes = bytes;
    options.aside_bytes = 2 * bytes;
    options.staging_bytes = 2 * bytes;
    file = test::memory_file(options.disk_bytes + options.aside_bytes);
    cache = KvCache::open(*device, options).value();
    const auto staging = [&] { return device->allocate(Memory::kPinned, 4 << 20).value(); };
    on_disk.emplace(transfers, file, staging(), true);
    aside.emplace(transfers, file, staging(), true);
    mover.emplace(*device, *stream, *cache, &*on_disk, &*aside);
  }

  static constexpr int64_t kRows = 16 * 70;

  std::unique_ptr<Device> device = open_cpu_device(1).value();
  std::unique_ptr<Stream> stream = device->new_stream("test");
  TransferQueue transfers;
  KvCacheOptions options;
  File file;
  std::unique_ptr<KvCache> cache;
  std::optional<SpillStager> on_disk, aside;
  std::optional<KvMover> mover;
};

std::vector<std::byte> rows_of(Fixture& f, KvSequence& sequence, int64_t layer, int64_t positions) {
  std::vector<std::byte> state, rows;
  REQUIRE(f.mover->read(sequence, layer, positions, &state, &rows).ok());
  CHECK(state.empty());
  return rows;
}

TEST_CASE("a cache moves aside and back, run by run, whatever the runs are on either side") {
  FakeIo io({.seed = 1});
  Fixture f(io);
  constexpr int64_t kHas = 16 * 50 + 3;
  // Two sequences in turns, so that the runs of the first are short, in memory and on disk.
  auto first = f.cache->reserve(Fixture::kRows, {}, {}, 16 * 5).value();
  auto second = f.cache->reserve(Fixture::kRows, {}, {}, 16 * 5).value();
  for (int64_t rows = 16 * 10; rows <= 16 * 55; rows += 16 * 5) {
    REQUIRE(f.cache->grow(*first, rows));
    if (rows <= 16 * 30) REQUIRE(f.cache->grow(*second, rows));
  }
  CHECK(first->positions() >= 16 * 55);
  REQUIRE(first->disk_layers() >= 1);
  REQUIRE(first->disk_layers() < kLayers);
  f.cache->release(std::move(second));
  // Bytes of its own in every layer: through a sequence aside, whose runs are long.
  auto source = f.cache->reserve_aside(*first, kHas).value();
  CHECK(source->disk_layers() == kLayers);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    std::vector<SpillUse> uses;
    f.cache->add_uses(*source, layer, kHas, 0, &uses);
    std::vector<uint64_t> sizes;
    for (SpillUse& use : uses) {
      sizes.push_back(use.read_bytes);
      use.read_bytes = 0;
    }
    f.aside->begin(uses);
    for (size_t run = 0; run < uses.size(); ++run) {
      std::byte* memory = f.aside->wait(run).value();
      for (uint64_t i = 0; i < sizes[run]; ++i) {
        memory[i] = static_cast<std::byte>((i * 7 + run * 31 + static_cast<uint64_t>(layer)) >> 3);
      }
      const ByteRange change{0, sizes[run]};
      f.aside->finish(run, {&change, 1});
    }
    f.aside->flush();
  }
  REQUIRE(f.mover->move(*source, *first, kHas).ok());
  auto again = f.cache->reserve_aside(*first, kHas).value();
  REQUIRE(f.mover->move(*first, *again, kHas).ok());
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::vector<std::byte> expected = rows_of(f, *source, layer, kHas);
    CHECK(expected.size() == f.options.layout.sequence_bytes(kHas));
    CHECK(rows_of(f, *first, layer, kHas) == expected);
    CHECK(rows_of(f, *again, layer, kHas) == expected);
  }
  for (auto* one : {&source, &again, &first}) {
    f.on_disk->forget(one->get());
    f.aside->forget(one->get());
    f.cache->release(std::move(*one));
  }
  f.cache->verify();
  CHECK(f.cache->reserved_bytes() == 0);
}

}  // namespace
}  // namespace spillway::kv_mover_test
