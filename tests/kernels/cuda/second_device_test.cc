// `--gpu 1`: the runtime keeps a device per host thread, and the engine's is not the one that
// opened the device.
//
// SPILLWAY_EMULATION_SEED: 1 2
#include <catch2/catch.hpp>
#include <thread>

#include "kernels/ops.h"
#include "server/runtime.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/golden.h"
#include "tests/support/random_data.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::second_device_test {
namespace {

using test::CollectingSink;
using test::DeviceArray;

constexpr int64_t kRows = 3, kColumns = 64;

// Looks rows up and normalizes them: an upload, two kernels, copies and events.
std::vector<float> work(Device& device, Stream& stream, const std::vector<float>& numbers) {
  const DeviceArray<float> table(device, stream, numbers);
  const DeviceArray<float> out(device, stream, std::vector<float>(numbers.size()));
  const WeightSlab slab{reinterpret_cast<const std::byte*>(table.data()), kRows};
  const std::vector<int32_t> rows = {2, 0, 1};
  gather_rows(stream, {.table = {std::span(&slab, 1), Format::kF32, MatrixLayout::kRows, kRows,
                                 kColumns, kRows},
                       .rows = rows,
                       .out = out.matrix(kRows, kColumns)});
  normalize(stream, {.in = out.matrix(kRows, kColumns), .out = out.matrix(kRows, kColumns)});
  return out.read();
}

std::vector<float> expected(const std::vector<float>& numbers) {
  std::vector<float> rows(numbers.begin() + 2 * kColumns, numbers.end());
  rows.insert(rows.end(), numbers.begin(), numbers.begin() + 2 * kColumns);
  return scalar::normalize(NormKind::kLayerNorm, 1e-5f, rows, {}, {}, kRows, kColumns);
}

TEST_CASE("every thread reaches the device that it was given, whichever thread opened it") {
  {
    const auto first = open_cuda_device(0).value(), second = open_cuda_device(1).value();
    auto on_first = first->new_stream("first"), on_second = second->new_stream("second");
    const auto numbers = test::random_floats(kRows * kColumns, 3);
    Buffer last = second->allocate(Memory::kDevice, 64).value();
    double worst = 0;
    std::thread([&] {
      for (int i = 0; i < 3; ++i) {
        for (const auto& [device, stream] :
             {std::pair(second.get(), on_second.get()), std::pair(first.get(), on_first.get())}) {
          worst = std::max(
              worst, test::relative_error(work(*device, *stream, numbers), expected(numbers)));
        }
      }
      on_second->wait(on_first->record());  // Across devices
      worst = std::max(worst,
                       test::relative_error(work(*second, *on_second, numbers), expected(numbers)));
      on_first.reset();
    }).join();
    CHECK(worst < 2e-5);
    CHECK(on_second->record().wait().ok());
    // Memory and streams may end on any thread, too.
    std::thread([&] {
      last = Buffer();
      on_second.reset();
    }).join();
  }
  CHECK(fake_cudart::leaks() == 0);
}

std::vector<std::vector<int32_t>> tokens_of(const std::string& checkpoint, int64_t gpu) {
  EngineFlags flags;
  flags.device = "cuda";
  flags.gpu = gpu;
  flags.format = Format::kBF16;
  flags.weights = {30, 40, 30};
  flags.kv = {30, 40, 30};
  flags.activations = {40, 30, 30};
  flags.micro_batch = 2;
  flags.block = 4;
  flags.host_memory_bytes = flags.device_memory_bytes = uint64_t{1} << 30;
  const auto runtime = Runtime::open(checkpoint, flags, {}).value();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    Request request;
    request.prompt = std::vector<int32_t>(static_cast<size_t>(5 + i), 7 + i);
    request.max_tokens = 6;
    request.ignore_eos = true;
    sinks.push_back(std::make_shared<CollectingSink>());
    REQUIRE(runtime->scheduler().submit(request, sinks.back()).ok());
  }
  std::vector<std::vector<int32_t>> tokens;
  for (const auto& sink : sinks) {
    const Finish finish = sink->wait();
    INFO(finish.status.message());
    REQUIRE(finish.status.ok());
    tokens.push_back(sink->tokens);
  }
  return tokens;
}

TEST_CASE("a model on the second device gives the tokens of the first") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
  const size_t before = fake_cudart::leaks();
  CHECK(tokens_of(checkpoint, 1) == tokens_of(checkpoint, 0));
  CHECK(fake_cudart::leaks() == before);
}

}  // namespace
}  // namespace spillway::second_device_test
