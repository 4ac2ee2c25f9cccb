// What an op sends to the device with itself (rows to gather, items to attend to) may be of any
// number.
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/cuda/cuda_context.h"
#include "kernels/ops.h"
#include "tests/support/random_data.h"
#include "tests/support/test_devices.h"

namespace spillway {
namespace {

using test::DeviceArray;

constexpr size_t kMiB = size_t{1} << 20;

TEST_CASE("more rows are gathered than are uploaded at once") {
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("compute");
  const test::PackedMatrix table(MatrixLayout::kRows, DType::kF32, test::random_floats(50, 1), 50,
                                 1, 16);
  const test::DeviceMatrix there(*device, *stream, table);
  std::vector<int32_t> rows(kMiB / sizeof(int32_t) + 100);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i * 7 % 50);
  const auto count = static_cast<int64_t>(rows.size());
  const DeviceArray<float> out(*device, *stream, std::vector<float>(rows.size()));
  gather_rows(*stream, {.table = there.matrix(), .rows = rows, .out = out.matrix(count, 1)});
  const std::vector<float> got = out.read();
  size_t wrong = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (got[i] != table.rounded()[static_cast<size_t>(rows[i])]) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("sequences are attended to in as many parts as they are uploaded in") {
  constexpr int64_t kHeadSize = 4;
  // Of what an item is on the device: 256 KiB are a part.
  constexpr int64_t kItems = 3'100;
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("compute");
  const KvLayout kv{.heads = 1, .head_size = kHeadSize, .dtype = DType::kF32};
  const size_t each = kv.sequence_bytes(2);
  const Buffer caches = device->allocate(Memory::kDevice, each * kItems).value();  // Zeros
  const std::vector<float> qkv = test::random_floats(kItems * 3 * kHeadSize, 2);
  const DeviceArray<float> in(*device, *stream, qkv),
      out(*device, *stream, std::vector<float>(kItems * kHeadSize));
  std::vector<AttentionItem> items;
  for (int64_t i = 0; i < kItems; ++i) {
    items.push_back({.first_row = i,
                     .tokens = 1,
                     .position = 1,
                     .kv = caches.data() + static_cast<size_t>(i) * each});
  }
  attention(*stream, {.qkv = in.matrix(kItems, 3 * kHeadSize),
                      .items = items,
                      .heads = 1,
                      .kv = kv,
                      .out = out.matrix(kItems, kHeadSize)});
  const std::vector<float> got = out.read();
  size_t wrong = 0;
  for (size_t i = 0; i < kItems; ++i) {
    const float* q = qkv.data() + i * 3 * kHeadSize;
    float dot = 0;
    for (int64_t j = 0; j < kHeadSize; ++j) dot += q[j] * q[kHeadSize + j];
    const float weight = 1 / (1 + std::exp(-dot / 2));  // The row before is zeros.
    for (int64_t j = 0; j < kHeadSize; ++j) {
      const float expected = weight * q[2 * kHeadSize + j];
      if (!(std::abs(got[i * kHeadSize + static_cast<size_t>(j)] - expected) < 1e-5f)) ++wrong;
    }
  }
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace spillway
