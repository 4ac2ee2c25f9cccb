// What is taken of a device's memory is counted, wherever in it, and kept within the budget.
#include <catch2/catch.hpp>

#include "kernels/ops.h"
#include "scheduler/planning/memory_budget.h"
#include "server/runtime.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/golden.h"
#include "tests/support/random_data.h"
#include "tests/support/test_devices.h"

namespace spillway::device_memory_test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// What the runtime says is gone.
size_t used(const Device& device) {
  const MemoryInfo memory = device.memory();
  return memory.total_bytes - memory.free_bytes;
}

TEST_CASE("every byte that a device gives out is counted until it comes back, and so is the peak") {
  const auto device = open_cuda_device(0).value();
  CHECK(device->memory().taken_bytes == 0);
  {
    const Buffer a = device->allocate(Memory::kDevice, 3 * kMiB).value();
    const Buffer pinned = device->allocate(Memory::kPinned, 50 * kMiB).value();
    { const Buffer b = device->allocate(Memory::kDevice, 4 * kMiB).value(); }
    CHECK(device->memory().taken_bytes == 3 * kMiB);
    CHECK(device->memory().peak_bytes == 7 * kMiB);
    device->limit_memory(0);
    CHECK(device->memory().peak_bytes == 3 * kMiB);
    // Scratch of an op: 4-bit weights expanded.
    const auto stream = device->new_stream("test");
    const test::PackedMatrix packed(device->matrix_layout(Format::kQ4), Format::kQ4,
                                    test::random_floats(64 * 64, 1), 64, 64, 64);
    const test::DeviceMatrix weights(*device, *stream, packed);
    constexpr int64_t kRows = kFewRows + 8;
    const test::DeviceArray<std::byte> in(*device, *stream, std::vector<std::byte>(kRows * 64 * 2));
    const test::DeviceArray<float> out(*device, *stream, std::vector<float>(kRows * 64));
    const size_t before = device->memory().taken_bytes;
    linear(*stream,
           {.in = dense_matrix(in.data(), device->activation_dtype(Format::kQ4), kRows, 64),
            .weight = weights.matrix(),
            .out = out.matrix(kRows, 64)});
    REQUIRE(stream->record().wait().ok());
    CHECK(device->memory().taken_bytes >= before + 64 * 64 * 2);
    CHECK(device->memory().taken_bytes == used(*device));
  }
  CHECK(device->memory().taken_bytes == 0);
  CHECK(used(*device) == 0);
}

TEST_CASE("a limit on a device's memory refuses what is more, in words, and nothing else") {
  const auto device = open_cuda_device(0).value();
  device->limit_memory(10 * kMiB);
  const Buffer most = device->allocate(Memory::kDevice, 9 * kMiB).value();
  const Status status = device->allocate(Memory::kDevice, 2 * kMiB).status();
  INFO(status.message());
  CHECK(status.code() == Code::kCapacity);
  CHECK_THAT(std::string(status.message()), Catch::Contains("2.00 MiB more"));
  CHECK_THAT(std::string(status.message()), Catch::Contains("9.00 MiB of 10.0 MiB"));
  CHECK_THAT(std::string(status.message()), Catch::Contains("--device-memory"));
  CHECK(device->memory().peak_bytes == 9 * kMiB);
  CHECK(device->allocate(Memory::kDevice, kMiB).ok());
  CHECK(device->allocate(Memory::kPinned, 20 * kMiB).ok());
  device->limit_memory(0);
  CHECK(device->allocate(Memory::kDevice, 20 * kMiB).ok());
}

TEST_CASE("memory that a device does not have is an error of that call alone") {
  const auto device = open_cuda_device(0).value();
  fake_cudart::limit_memory(8 * kMiB);
  CHECK(device->allocate(Memory::kDevice, 9 * kMiB).status().code() == Code::kCapacity);
  CHECK(device->memory().taken_bytes == 0);
  const auto stream = device->new_stream("test");
  const test::DeviceArray<float> in(*device, *stream, std::vector<float>(64, 1.0f));
  const test::DeviceArray<uint16_t> out(*device, *stream, std::vector<uint16_t>(64));
  convert_rows(*stream, {.in = in.matrix(1, 64),
                         .out = dense_matrix(reinterpret_cast<std::byte*>(out.data()), DType::kBF16,
                                             1, 64)});
  CHECK(stream->record().wait().ok());
  fake_cudart::limit_memory(size_t{1} << 40);
}

TEST_CASE("a run keeps its device's memory within --device-memory") {
  const test::TemporaryCache cache;
  EngineFlags flags;
  flags.device = "cuda";
  flags.format = Format::kQ4;
  flags.weights = {50, 50, 0};
  flags.kv = {50, 50, 0};
  flags.block = 4;
  flags.host_memory_bytes = flags.device_memory_bytes = 900 * kMiB;
  const std::string model = test::read_golden("pre_ln_relu").checkpoints.front();
  const auto runtime = Runtime::open(model, flags, {}).value();
  std::vector<std::shared_ptr<test::CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    Request request;
    request.prompt = std::vector<int32_t>(static_cast<size_t>(12 + i), 7 + i);
    request.max_tokens = 4;
    request.ignore_eos = true;
    sinks.push_back(std::make_shared<test::CollectingSink>());
    REQUIRE(runtime->scheduler().submit(request, sinks.back()).ok());
  }
  for (const auto& sink : sinks) CHECK(sink->wait().status.ok());
  const MemoryInfo memory = runtime->device().memory();
  CHECK(memory.taken_bytes == used(runtime->device()));
  CHECK(memory.peak_bytes >= memory.taken_bytes);
  CHECK(memory.peak_bytes <= 900 * kMiB);
  // The limit holds, whoever asks.
  const Status more = runtime->device().allocate(Memory::kDevice, 900 * kMiB).status();
  CHECK(more.code() == Code::kCapacity);
}

TEST_CASE("the context is in --device-memory, too") {
  const test::TemporaryCache cache;
  EngineFlags flags;
  flags.device = "cuda";
  flags.format = Format::kQ4;
  flags.host_memory_bytes = flags.device_memory_bytes = 1000 * kMiB;
  const std::string model = test::read_golden("pre_ln_relu").checkpoints.front();
  // The context's, and other programs' which cannot be told from it.
  for (const size_t gone : {size_t{0}, 300 * kMiB, 5000 * kMiB}) {
    INFO(gone / kMiB << " MiB are gone");
    fake_cudart::set_context_bytes(gone);
    const auto opened = Runtime::open(model, flags, {});
    fake_cudart::set_context_bytes(0);
    REQUIRE(opened.ok());
    Device& device = opened.value()->device();
    const size_t context = std::min<size_t>(gone, kDeviceProcessBytes);
    const size_t left = 1000 * kMiB - context - device.memory().taken_bytes;
    CHECK(device.allocate(Memory::kDevice, left).ok());
    CHECK(device.allocate(Memory::kDevice, left + 1).status().code() == Code::kCapacity);
  }
}

}  // namespace
}  // namespace spillway::device_memory_test
