// Which products end in cuBLASLt's epilogue: what the conformance tests (kernels/linear_test.cc),
// which see results alone, cannot tell.
#include <catch2/catch.hpp>

#include "kernels/ops.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/test_devices.h"

namespace spillway::linear_fused_test {
namespace {

using test::DeviceArray;
using test::DeviceMatrix;
using test::PackedMatrix;

constexpr int64_t kRows = kFewRows + 5, kInputs = 64;

// How many products cuBLASLt was given for one layer of two slabs.
uint64_t fused(Format format, DType out_dtype, int64_t outputs, Activation activation,
               bool finite = true) {
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("test");
  const DType in_dtype = device->activation_dtype(format);
  const PackedMatrix packed(device->matrix_layout(format), format,
                            test::random_floats(outputs * kInputs, 2), outputs, kInputs, 64);
  const DeviceMatrix weights(*device, *stream, packed);
  const auto in_bytes = test::bytes_of(in_dtype, test::random_floats(kRows * kInputs, 1));
  const DeviceArray<std::byte> in(*device, *stream, in_bytes);
  const DeviceArray<float> bias(*device, *stream, test::random_floats(outputs, 3));
  const DeviceArray<std::byte> out(
      *device, *stream,
      std::vector<std::byte>(static_cast<size_t>(kRows * outputs) * dtype_bytes(out_dtype)));
  const uint64_t before = fake_cudart::fused_products();
  WeightMatrix matrix = weights.matrix();
  matrix.finite = finite;
  linear(*stream, {.in = dense_matrix(in.data(), in_dtype, kRows, kInputs),
                   .weight = matrix,
                   .bias = bias.data(),
                   .activation = activation,
                   .out = dense_matrix(out.data(), out_dtype, kRows, outputs)});
  CHECK(stream->record().wait().ok());
  return fake_cudart::fused_products() - before;
}

TEST_CASE("products end in cuBLASLt's epilogue where it has one") {
  const auto format = GENERATE(from_range(std::begin(kFormats), std::end(kFormats)));
  const DType narrow = is_quantized(format) ? DType::kBF16 : element_of(format);
  INFO(format_name(format));
  CHECK(fused(format, DType::kF32, 128, Activation::kNone) == 2);
  CHECK(fused(format, narrow, 128, Activation::kRelu) == 2);
  CHECK(fused(format, DType::kF32, 128, Activation::kRelu) == 2);
  if (narrow != DType::kF32) CHECK(fused(format, narrow, 128, Activation::kGeluTanh) == 2);
}

TEST_CASE("products that cuBLASLt cannot finish end in a kernel of ours") {
  CHECK(fused(Format::kF32, DType::kF32, 128, Activation::kGelu) == 0);
  CHECK(fused(Format::kBF16, DType::kBF16, 128, Activation::kSilu) == 0);
  CHECK(fused(Format::kF32, DType::kF32, 128, Activation::kGeluTanh) == 0);
  // Its ReLU makes NaN 0.
  for (const DType out : {DType::kF32, DType::kBF16}) {
    CHECK(fused(Format::kBF16, out, 128, Activation::kRelu, false) == 0);
    CHECK(fused(Format::kBF16, out, 128, Activation::kNone, false) == 2);
  }
  // No algorithm for the second slab: the layer is finished in one way.
  CHECK(fused(Format::kF32, DType::kF32, 64 + 7, Activation::kRelu) == 0);
}

}  // namespace
}  // namespace spillway::linear_fused_test
