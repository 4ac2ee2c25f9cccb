// The bias of a narrow output is rounded when a layer's weights are there for the first time, not
// in every product: with the same results.
#include <catch2/catch.hpp>

#include "kernels/ops.h"
#include "scheduler/engine/engine.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/test_devices.h"
#include "tests/support/tiny_shape.h"

namespace spillway::rounded_bias_test {
namespace {

using test::DeviceArray;
using test::DeviceMatrix;
using test::PackedMatrix;

constexpr int64_t kRows = kFewRows + 5, kOutputs = 128, kInputs = 64;

struct Product {
  std::vector<std::byte> out;
  uint64_t launches;  // Of our kernels
};

Product product(Format format, int64_t rows, bool rounded) {
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("test");
  const DType narrow = device->activation_dtype(format);
  const PackedMatrix packed(device->matrix_layout(format), format,
                            test::random_floats(kOutputs * kInputs, 2), kOutputs, kInputs, 64);
  const DeviceMatrix weights(*device, *stream, packed);
  const DeviceArray<std::byte> in(*device, *stream,
                                  test::bytes_of(narrow, test::random_floats(rows * kInputs, 1)));
  const std::vector<float> bias = test::random_floats(kOutputs, 3);
  const DeviceArray<float> exact(*device, *stream, bias);
  const DeviceArray<std::byte> narrowed(*device, *stream, test::bytes_of(narrow, bias));
  const DeviceArray<std::byte> out(
      *device, *stream, std::vector<std::byte>(static_cast<size_t>(rows * kOutputs) * 2));
  WeightMatrix matrix = weights.matrix();
  matrix.finite = true;
  const uint64_t before = fake_cudart::launches();
  linear(*stream, {.in = dense_matrix(in.data(), narrow, rows, kInputs),
                   .weight = matrix,
                   .bias = exact.data(),
                   .rounded_bias = rounded ? narrowed.data() : nullptr,
                   .activation = Activation::kRelu,
                   .out = dense_matrix(out.data(), narrow, rows, kOutputs)});
  const uint64_t launches = fake_cudart::launches() - before;
  return {out.read(), launches};
}

TEST_CASE("a product with a rounded bias is the same, and one kernel less") {
  for (const Format format : {Format::kBF16, Format::kF16, Format::kQ4}) {
    INFO(format_name(format));
    const Product plain = product(format, kRows, false), rounded = product(format, kRows, true);
    CHECK(rounded.out == plain.out);
    CHECK(rounded.launches + 1 == plain.launches);
    const Product few = product(format, 3, true);
    CHECK(few.out == product(format, 3, false).out);
  }
}

class Silent final : public LogitsSink {
 public:
  void on_logits(size_t, int64_t, std::span<float>) override {}
  void on_failure(size_t, const Status& status) override { CHECK(status.ok()); }
};

TEST_CASE("an engine rounds each layer's bias once, wherever its weights live") {
  constexpr int64_t kLayers = 3;
  const ModelShape shape = test::tiny_shape(kLayers);
  const auto device = open_cuda_device(0).value();
  WeightStoreOptions stored;
  if (GENERATE(false, true)) {
    const ModelFileTable table =
        plan_model_file(shape, Format::kBF16, device->matrix_layout(Format::kBF16));
    stored.placement = place_weights(table, 0, table.weight_bytes());
    REQUIRE(stored.placement.memory_bytes == 0);
  }
  const auto weights = WeightStore::dummy(*device, shape, Format::kBF16, 3, std::move(stored));
  EngineOptions options;
  options.kv_bytes = kv_layout(shape, Format::kF32).sequence_bytes(32) * 2 * kLayers;
  options.sweep_tokens_max = 32;
  const auto engine = Engine::open(*device, *weights.value(), options).value();
  const std::vector<int32_t> tokens(5, 7);
  const auto run_prompt = [&] {
    auto cache = engine->reserve(32).value();
    Silent sink;
    const SweepItem item{.tokens = tokens, .kv = cache.get()};
    const Status status = engine->run({&item, 1}, sink);
    engine->release(std::move(cache));
    return status;
  };
  const auto launches_of_prompt = [&] {
    const uint64_t before = fake_cudart::launches();
    REQUIRE(run_prompt().ok());
    return fake_cudart::launches() - before;
  };
  // A sweep that fails has rounded nothing.
  constexpr size_t kUnlimited = size_t{1} << 40;
  fake_cudart::limit_memory(kUnlimited - device->memory().free_bytes);
  CHECK(run_prompt().code() == Code::kCapacity);
  fake_cudart::limit_memory(kUnlimited);
  const uint64_t first = launches_of_prompt(), second = launches_of_prompt();
  CHECK(first == second + kLayers);
  CHECK(launches_of_prompt() == second);
}

}  // namespace
}  // namespace spillway::rounded_bias_test
