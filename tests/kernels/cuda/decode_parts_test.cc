// Decode steps whose partial results do not fit the scratch at once go in parts: with the same
// results.
#include <catch2/catch.hpp>

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/ops.h"
#include "tests/support/random_data.h"
#include "tests/support/test_devices.h"

namespace spillway::decode_parts_test {
namespace {

using test::DeviceArray;

constexpr int64_t kHeads = 2, kSize = 8;
constexpr int64_t kWidth = (kHeads + 2) * kSize;

// Outputs, caches and states after a step of each of so many sequences.
std::vector<std::vector<std::byte>> after_step(Device& device, int64_t count,
                                               int64_t scratch_bytes) {
  const auto stream = device.new_stream("test");
  const KvLayout layout{1, kSize, Format::kF32};
  const std::vector<KvBudget> budgets = {{}, {5, 20, true}, {5, 20, false}};
  std::vector<std::unique_ptr<DeviceArray<float>>> caches;
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> states;
  std::vector<AttentionItem> items;
  for (int64_t i = 0; i < count; ++i) {
    const KvBudget& budget = budgets[static_cast<size_t>(i) % 3];
    const int64_t position = 40 + 37 * (i % 7);
    const auto floats = static_cast<int64_t>(layout.sequence_bytes(budget.slots(300)) / 4);
    caches.push_back(std::make_unique<DeviceArray<float>>(
        device, *stream, test::random_floats(floats, static_cast<uint64_t>(i))));
    states.push_back(std::make_unique<DeviceArray<std::byte>>(
        device, *stream, std::vector<std::byte>(KvStateLayout{1, budget}.bytes())));
    items.push_back({i, 1, position, reinterpret_cast<std::byte*>(caches.back()->data()), budget,
                     states.back()->data()});
  }
  const DeviceArray<float> qkv(device, *stream, test::random_floats(count * kWidth, 99)),
      out(device, *stream, std::vector<float>(static_cast<size_t>(count * kHeads * kSize)));
  cuda::attention_within(*static_cast<cuda::CudaContext*>(stream->native()),
                         {.qkv = qkv.matrix(count, kWidth),
                          .items = items,
                          .heads = kHeads,
                          .kv = layout,
                          .out = out.matrix(count, kHeads * kSize)},
                         scratch_bytes);
  const auto bytes = [](const std::vector<float>& values) {
    const auto* first = reinterpret_cast<const std::byte*>(values.data());
    return std::vector<std::byte>(first, first + values.size() * 4);
  };
  std::vector<std::vector<std::byte>> all = {bytes(out.read())};
  for (const auto& cache : caches) all.push_back(bytes(cache->read()));
  for (const auto& state : states) all.push_back(state->read());
  return all;
}

TEST_CASE("decode steps in parts are those at once") {
  const auto device = open_cuda_device(0).value();
  // So few that they go with the parameters, and more.
  const int64_t count = GENERATE(7, 45);
  const auto whole = after_step(*device, count, cuda::kDecodeScratchBytes);
  // Of at most 263 rows each: two splits and the scores of two heads, 2,264 bytes.
  for (const int64_t scratch_bytes : {1, 5000, 7000}) {
    INFO(count << " sequences, " << scratch_bytes << " bytes of scratch");
    CHECK(after_step(*device, count, scratch_bytes) == whole);
  }
}

}  // namespace
}  // namespace spillway::decode_parts_test
