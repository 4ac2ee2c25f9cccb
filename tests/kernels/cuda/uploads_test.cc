// What an op sends to the device with itself (rows to gather, items to attend to) may be of any
// number; few items need no copy.
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/cuda/cuda_context.h"
#include "kernels/ops.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/random_data.h"
#include "tests/support/test_devices.h"

namespace spillway::uploads_test {
namespace {

using test::DeviceArray;

constexpr size_t kMiB = size_t{1} << 20;

TEST_CASE("more rows are gathered than are uploaded at once") {
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("compute");
  const test::PackedMatrix table(MatrixLayout::kRows, Format::kF32, test::random_floats(50, 1), 50,
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

// Attends to a step, or a prompt of one token, of each of so many sequences, checks the outputs,
// and returns how much was uploaded for it.
uint64_t uploaded_for(int64_t count, int64_t position) {
  constexpr int64_t kHeadSize = 4;
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("compute");
  const KvLayout kv{.heads = 1, .head_size = kHeadSize, .format = Format::kF32};
  const size_t each = kv.sequence_bytes(2);
  const Buffer caches =
      device->allocate(Memory::kDevice, each * static_cast<size_t>(count)).value();  // Zeros
  const std::vector<float> qkv = test::random_floats(count * 3 * kHeadSize, 2);
  const DeviceArray<float> in(*device, *stream, qkv),
      out(*device, *stream, std::vector<float>(static_cast<size_t>(count * kHeadSize)));
  std::vector<AttentionItem> items;
  for (int64_t i = 0; i < count; ++i) {
    items.push_back({.first_row = i,
                     .tokens = 1,
                     .position = position,
                     .kv = caches.data() + static_cast<size_t>(i) * each});
  }
  const uint64_t before = fake_cudart::bytes_to_device_queued();
  attention(*stream, {.qkv = in.matrix(count, 3 * kHeadSize),
                      .items = items,
                      .heads = 1,
                      .kv = kv,
                      .out = out.matrix(count, kHeadSize)});
  const uint64_t uploaded = fake_cudart::bytes_to_device_queued() - before;
  const std::vector<float> got = out.read();
  size_t wrong = 0;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const float* q = qkv.data() + i * 3 * kHeadSize;
    float dot = 0;
    for (int64_t j = 0; j < kHeadSize; ++j) dot += q[j] * q[kHeadSize + j];
    // The row before, if there is one, is zeros.
    const float weight = position == 0 ? 1 : 1 / (1 + std::exp(-dot / 2));
    for (int64_t j = 0; j < kHeadSize; ++j) {
      const float expected = weight * q[2 * kHeadSize + j];
      if (!(std::abs(got[i * kHeadSize + static_cast<size_t>(j)] - expected) < 1e-5f)) ++wrong;
    }
  }
  CHECK(wrong == 0);
  return uploaded;
}

TEST_CASE("sequences are attended to in as many parts as they are uploaded in") {
  // Of what an item is on the device: 256 KiB are a part.
  CHECK(uploaded_for(3'400, 1) > kMiB / 4);
}

TEST_CASE("a few sequences are attended to without an upload") {
  for (const int64_t position : {0, 1}) {
    INFO("position " << position);
    for (const int64_t count : {1, 39, 40}) CHECK(uploaded_for(count, position) == 0);
    CHECK(uploaded_for(41, position) > 0);
  }
}

}  // namespace
}  // namespace spillway::uploads_test
