// Block tables go to the device with a call's items, however long they are, and the caller's may go
// as soon as attention() has returned.
#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/ops.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/paged_attention.h"
#include "tests/support/random_data.h"
#include "tests/support/test_devices.h"

namespace spillway::block_table_test {
namespace {

using test::DeviceArray;

constexpr int64_t kSize = 4, kWidth = 3 * kSize;
constexpr int64_t kWindow = 20;  // Of a long cache few keys are read.
const KvLayout kLayout{1, kSize, Format::kF32};

// A cache of so many rows of random numbers.
DeviceArray<float> random_cache(Device& device, Stream& stream, int64_t rows, uint64_t seed) {
  const auto floats = static_cast<int64_t>(kLayout.sequence_bytes(rows) / sizeof(float));
  return {device, stream, test::random_floats(floats, seed)};
}

std::byte* bytes_of(const DeviceArray<float>& cache) {
  return reinterpret_cast<std::byte*>(cache.data());
}

TEST_CASE("block tables are uploaded in as many parts as they need") {
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("test");
  // Their tables: of 8 bytes for every 16 rows 49, 293 and 44 KiB, of which 256 KiB are a part.
  const std::vector<int64_t> positions = {100'000, 600'000, 90'000, 16};
  std::vector<std::unique_ptr<DeviceArray<float>>> caches;
  std::vector<AttentionItem> items;
  for (const int64_t position : positions) {
    const auto i = static_cast<int64_t>(items.size());
    caches.push_back(std::make_unique<DeviceArray<float>>(
        random_cache(*device, *stream, position + 1, static_cast<uint64_t>(i))));
    items.push_back({.first_row = i,
                     .tokens = 1,
                     .position = position,
                     .kv = bytes_of(*caches.back()),
                     .prompt = position + 9});
  }
  const auto count = static_cast<int64_t>(items.size());
  const DeviceArray<float> qkv(*device, *stream, test::random_floats(count * kWidth, 8)),
      out(*device, *stream, std::vector<float>(static_cast<size_t>(count * kSize)));
  const uint64_t before = fake_cudart::launches();
  test::attention_both_ways(*device, *stream,
                            {.qkv = qkv.matrix(count, kWidth),
                             .items = items,
                             .heads = 1,
                             .kv = kLayout,
                             .out = out.matrix(count, kSize),
                             .window = kWindow});
  // Two kernels for each part: the first sequence, the second, and the others; and without tables.
  CHECK(fake_cudart::launches() - before == 2 * (3 + 1));
}

// So many calls that the memory for uploads is used again and again.
TEST_CASE("a block table may go when attention() has returned") {
  constexpr int64_t kCalls = 100, kCached = 100'000;
  const uint64_t seed = GENERATE(0, 1, 2);  // Work is done late, at once, late
  fake_cudart::set_seed(seed);
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("test");
  const auto run = [&](bool under_table) {
    const DeviceArray<float> cache = random_cache(*device, *stream, kCached + kCalls, 1);
    const DeviceArray<float> qkv(*device, *stream, test::random_floats(kCalls * kWidth, 2)),
        out(*device, *stream, std::vector<float>(static_cast<size_t>(kCalls * kSize)));
    for (int64_t call = 0; call < kCalls; ++call) {
      const int64_t position = kCached + call;
      std::vector<std::byte*> table(static_cast<size_t>(kv_blocks(position + 1)));
      for (size_t block = 0; block < table.size(); ++block) {
        table[block] = bytes_of(cache) + block * kLayout.block_bytes();
      }
      const AttentionItem item{
          .first_row = call,
          .tokens = 1,
          .position = position,
          .kv = under_table ? KvBlocks(table.data()) : KvBlocks(bytes_of(cache)),
          .prompt = kCached + kCalls};
      attention(*stream, {.qkv = qkv.matrix(kCalls, kWidth),
                          .items = {&item, 1},
                          .heads = 1,
                          .kv = kLayout,
                          .out = out.matrix(kCalls, kSize),
                          .window = kWindow});
      std::fill(table.begin(), table.end(), nullptr);
    }
    return std::pair(out.read(), cache.read());
  };
  CHECK(run(true) == run(false));
}

}  // namespace
}  // namespace spillway::block_table_test
