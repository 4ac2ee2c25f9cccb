// Scratch memory of the ops grows in the order of the stream, without waiting for the device, and
// within the budget all the same.
#include <catch2/catch.hpp>
#include <random>

#include "kernels/cuda/cuda_context.h"
#include "kernels/ops.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/random_data.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::scratch_test {
namespace {

using test::DeviceArray;

constexpr size_t kMiB = size_t{1} << 20;

cuda::CudaContext& context_of(Stream& stream) {
  return *static_cast<cuda::CudaContext*>(stream.native());
}

// Devices of the emulation as they are at first, at the end.
struct Pools {
  explicit Pools(bool there, size_t step = 4096) { fake_cudart::set_memory_pools(there, step); }
  ~Pools() { fake_cudart::set_memory_pools(true); }
};

TEST_CASE("scratch grows without waiting for what is queued") {
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("compute");
  cuda::CudaContext& context = context_of(*stream);
  const std::vector<float> values = test::random_floats(256, 1);
  const DeviceArray<float> from(*device, *stream, values);
  std::vector<float> seen(256);
  const size_t bytes = values.size() * sizeof(float), others = device->memory().taken_bytes;
  const auto pass_through = [&](size_t scratch_bytes) {
    std::byte* scratch = context.scratch(scratch_bytes);
    REQUIRE(scratch != nullptr);
    stream->copy(scratch, reinterpret_cast<const std::byte*>(from.data()), bytes);
    stream->copy(reinterpret_cast<std::byte*>(seen.data()), scratch, bytes);
  };
  const uint64_t before = fake_cudart::waits();
  for (size_t size = bytes; size <= 16 * bytes; size *= 2) pass_through(size);
  CHECK(fake_cudart::waits() == before);
  CHECK(device->memory().taken_bytes >= 16 * bytes);
  REQUIRE(stream->record().wait().ok());
  CHECK(seen == values);
  // What it grew out of went back to the device with that wait; it itself stays.
  CHECK(device->memory().taken_bytes == others + 16 * bytes);
  CHECK(device->memory().peak_bytes > device->memory().taken_bytes);
  CHECK(context.scratch(bytes) == context.scratch(16 * bytes));
}

// Layers of growing widths over 4-bit weights, which are expanded in scratch, on two streams: each
// finds its own, whatever runs first.
void check_growing_layers(uint64_t seed) {
  fake_cudart::set_seed(seed);
  std::mt19937_64 random(seed);
  {
    const auto device = open_cuda_device(0).value();
    const DType narrow = device->activation_dtype(Format::kQ4);
    const std::unique_ptr<Stream> streams[] = {device->new_stream("a"), device->new_stream("b")};
    struct Layer {
      std::unique_ptr<test::DeviceMatrix> weights;
      std::unique_ptr<DeviceArray<uint16_t>> in;
      std::unique_ptr<DeviceArray<float>> out;
      Stream* stream;
      int64_t width;
    };
    const int64_t rows = kFewRows + 1, outputs = 64;
    std::vector<Layer> layers;
    for (int64_t i = 1; i <= 8; ++i) {
      const int64_t width = 64 * i;
      Stream& stream = *streams[random() % 2];
      const test::PackedMatrix packed(device->matrix_layout(Format::kQ4), Format::kQ4,
                                      test::random_floats(outputs * width, random()), outputs,
                                      width, 32);
      const std::vector<uint16_t> ones(static_cast<size_t>(rows * width), 0x3f80);
      const std::vector<float> zeros(static_cast<size_t>(rows * outputs));
      layers.push_back({std::make_unique<test::DeviceMatrix>(*device, stream, packed),
                        std::make_unique<DeviceArray<uint16_t>>(*device, stream, ones),
                        std::make_unique<DeviceArray<float>>(*device, stream, zeros), &stream,
                        width});
    }
    const auto run = [&](Layer& layer) {
      linear(*layer.stream, {.in = dense_matrix(reinterpret_cast<std::byte*>(layer.in->data()),
                                                narrow, rows, layer.width),
                             .weight = layer.weights->matrix(),
                             .out = layer.out->matrix(rows, outputs)});
    };
    for (Layer& layer : layers) run(layer);  // All in flight together
    std::vector<std::vector<float>> together;
    for (Layer& layer : layers) together.push_back(layer.out->read());
    for (size_t i = 0; i < layers.size(); ++i) {
      run(layers[i]);
      CHECK(layers[i].out->read() == together[i]);  // Alone, its memory being there
    }
  }
  CHECK(fake_cudart::leaks() == 0);
}

TEST_CASE("work that is queued keeps the scratch it was given") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    INFO("seed " << seed);
    check_growing_layers(seed);
  }
}

TEST_CASE("a device without memory pools has scratch, too") {
  const Pools none(false);
  check_growing_layers(1);
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("compute");
  CHECK(context_of(*stream).scratch(kMiB) != nullptr);
  CHECK(context_of(*stream).scratch(3 * kMiB) != nullptr);
  CHECK(device->memory().taken_bytes == 3 * kMiB);
}

// The budget holds whatever the pool rounds up to and has left over; where the room is what the
// stream still uses, it is waited for.
TEST_CASE("scratch keeps within the device's budget") {
  const size_t step = GENERATE(size_t{4096}, 2 * kMiB, 8 * kMiB);
  const Pools pools(true, step);
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("compute");
  cuda::CudaContext& context = context_of(*stream);
  const size_t budget = 10 * kMiB;
  device->limit_memory(budget);
  INFO("step " << step);
  for (const size_t wanted : {3 * kMiB, 5 * kMiB, 6 * kMiB, 9 * kMiB, 10 * kMiB}) {
    INFO(wanted << " bytes");
    CHECK(context.scratch(wanted) != nullptr);
    const MemoryInfo memory = device->memory();
    CHECK(memory.taken_bytes >= wanted);
    CHECK(memory.taken_bytes == memory.total_bytes - memory.free_bytes);
    CHECK(memory.peak_bytes <= budget);
  }
  CHECK(context.scratch(10 * kMiB + 1) == nullptr);
  const Status status = stream->record().wait();
  INFO(status.message());
  CHECK(status.code() == Code::kCapacity);
  CHECK_THAT(std::string(status.message()), Catch::Contains("scratch memory"));
  CHECK_THAT(std::string(status.message()), Catch::Contains("--device-memory"));
  // It gave back what it had, and the stream goes on.
  CHECK(device->memory().taken_bytes == 0);
  CHECK(context.scratch(2 * kMiB) != nullptr);
  CHECK(stream->record().wait().ok());
}

TEST_CASE("what scratch left with the pool makes room for others") {
  const auto device = open_cuda_device(0).value();
  device->limit_memory(10 * kMiB);
  const auto stream = device->new_stream("compute");
  {
    const auto other = device->new_stream("other");
    CHECK(context_of(*other).scratch(4 * kMiB) != nullptr);
  }
  CHECK(context_of(*stream).scratch(2 * kMiB) != nullptr);
  CHECK(context_of(*stream).scratch(4 * kMiB) != nullptr);
  CHECK(stream->record().wait().ok());
  CHECK(device->allocate(Memory::kDevice, 6 * kMiB).ok());
  CHECK(device->memory().taken_bytes == 4 * kMiB);
}

}  // namespace
}  // namespace spillway::scratch_test
