// Linear layers on every device against their definition, in every format of weights and of what
// goes in and comes out.
//
// SPILLWAY_EMULATION_SEED: 1 2
#include <catch2/catch.hpp>

#include "kernels/ops.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::linear_test {
namespace {

using test::bytes_of;
using test::DeviceArray;
using test::DeviceMatrix;
using test::floats_of;
using test::PackedMatrix;
using test::random_floats;
using test::relative_error;
using test::rounded;

constexpr double kError = 2e-5;  // Of the largest value; sums of up to 2,100 terms

struct LinearCase {
  int64_t rows, outputs, inputs, slab_rows;
};

void check_linear(Device& device, Format format, const LinearCase& c, Activation activation,
                  bool hadamard = false) {
  const auto stream = device.new_stream("test");
  const DType in_dtype = device.activation_dtype(format);
  const auto given = rounded(in_dtype, random_floats(c.rows * c.inputs, 1));
  const auto in = hadamard ? rounded(in_dtype, scalar::hadamard(given, c.inputs, true)) : given;
  const PackedMatrix packed(device.matrix_layout(format), format,
                            random_floats(c.outputs * c.inputs, 2), c.outputs, c.inputs,
                            c.slab_rows, hadamard);
  // On CUDA quantised weights are expanded into the format of what goes in, except by the kernel
  // that multiplies their codes; on the CPU into float32.
  const bool codes = is_grouped(format) && c.rows <= kFewRows && c.inputs % 64 == 0;
  const auto weights =
      device.discrete() && !codes ? rounded(in_dtype, packed.rounded()) : packed.rounded();
  const auto bias = random_floats(c.outputs, 3), before = random_floats(c.rows * c.outputs, 4);
  const DeviceArray<std::byte> in_there(device, *stream, bytes_of(in_dtype, given));
  const DeviceMatrix weights_there(device, *stream, packed);
  const DeviceArray<float> bias_there(device, *stream, bias), out(device, *stream, before);
  LinearArgs args{.in = dense_matrix(in_there.data(), in_dtype, c.rows, c.inputs),
                  .weight = weights_there.matrix(),
                  .bias = bias_there.data(),
                  .activation = activation,
                  .out = out.matrix(c.rows, c.outputs)};
  linear(*stream, args);
  const auto expected =
      scalar::linear(in, weights, bias, {}, activation, c.rows, c.outputs, c.inputs);
  CHECK(relative_error(out.read(), expected) < kError);
  if (in_dtype != DType::kF32) {
    const DeviceArray<std::byte> narrow(
        device, *stream, std::vector<std::byte>(before.size() * dtype_bytes(in_dtype)));
    args.out = dense_matrix(narrow.data(), in_dtype, c.rows, c.outputs);
    linear(*stream, args);
    const auto found = floats_of(in_dtype, narrow.read());
    if (!device.discrete()) {
      CHECK(found == rounded(in_dtype, out.read()));
    } else {
      const auto with_rounded_bias = scalar::linear(in, weights, rounded(in_dtype, bias), {},
                                                    activation, c.rows, c.outputs, c.inputs);
      const double one_place = in_dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;
      CHECK(relative_error(found, rounded(in_dtype, with_rounded_bias)) < one_place);
    }
  }
  if (activation != Activation::kNone) return;
  for (const bool with_bias : {false, true}) {
    const DeviceArray<float> target(device, *stream, before);
    args.bias = with_bias ? bias_there.data() : nullptr;
    args.accumulate = true;
    args.out = target.matrix(c.rows, c.outputs);
    linear(*stream, args);
    CHECK(relative_error(target.read(),
                         scalar::linear(in, weights, with_bias ? bias : std::vector<float>(),
                                        before, activation, c.rows, c.outputs, c.inputs)) < kError);
  }
  // A factor of the product, added and alone.
  args.bias = nullptr;
  args.scale = 0.375f;
  std::vector<float> scaled = weights;
  for (float& weight : scaled) weight *= args.scale;
  for (const bool accumulate : {false, true}) {
    const DeviceArray<float> target(device, *stream, before);
    args.accumulate = accumulate;
    args.out = target.matrix(c.rows, c.outputs);
    linear(*stream, args);
    CHECK(relative_error(target.read(),
                         scalar::linear(in, scaled, {}, accumulate ? before : std::vector<float>(),
                                        activation, c.rows, c.outputs, c.inputs)) < kError);
  }
}

TEST_CASE("linear agrees with its definition") {
  const auto format = GENERATE(from_range(std::begin(kFormats), std::end(kFormats)));
  const auto c = GENERATE(
      LinearCase{1, 64, 64, 64}, LinearCase{2, 70, 33, 128}, LinearCase{3, 200, 1, 64},
      LinearCase{5, 129, 515, 64}, LinearCase{13, 64, 2100, 64}, LinearCase{13, 136, 64, 64},
      LinearCase{97, 320, 96, 192}, LinearCase{200, 65, 130, 128}, LinearCase{8, 70, 1100, 64},
      LinearCase{4, 33, 2113, 64}, LinearCase{7, 9, 60, 64}, LinearCase{25, 130, 64, 64},
      LinearCase{37, 50, 300, 64}, LinearCase{50, 33, 128, 64}, LinearCase{40, 20, 2150, 64},
      LinearCase{16, 40, 387, 64}, LinearCase{26, 34, 193, 64});
  const auto activation = GENERATE(Activation::kNone, Activation::kRelu, Activation::kGelu,
                                   Activation::kGeluTanh, Activation::kSilu);
  // What is done with the outputs knows nothing of the product's shape.
  if (!test::thorough() && activation != Activation::kNone && c.rows != 5) return;
  for (const auto& device : test::test_devices()) {
    if (!test::thorough() && c.rows * c.outputs > 2000) continue;
    INFO(device->name() << ", format " << format_name(format) << " rows " << c.rows << " outputs "
                        << c.outputs << " inputs " << c.inputs << " activation "
                        << activation_name(activation));
    check_linear(*device, format, c, activation);
  }
}

TEST_CASE("float products of 16-bit weights agree with their definition, with any instructions") {
  constexpr int64_t kOutputs = 70, kInputs = 387;  // Two stretches that are widened and 3 more
  const auto format = GENERATE(Format::kBF16, Format::kF16);
  const int64_t rows = GENERATE(3, 8, 14, 25, 97);
  test::for_each_instruction_set([&] {
    const auto device = open_cpu_device(1, CpuMatmul::kPanels).value();
    const auto stream = device->new_stream("test");
    REQUIRE(device->activation_dtype(format) == DType::kF32);
    auto in = random_floats(rows * kInputs, 1);
    const PackedMatrix w(device->matrix_layout(format), format,
                         random_floats(kOutputs * kInputs, 2), kOutputs, kInputs, 64);
    const auto multiply = [&](int64_t first, int64_t count) {
      std::vector<float> out(static_cast<size_t>(count * kOutputs));
      linear(*stream, {.in = dense_matrix(reinterpret_cast<std::byte*>(in.data() + first * kInputs),
                                          DType::kF32, count, kInputs),
                       .weight = w.matrix(),
                       .out = dense_matrix(reinterpret_cast<std::byte*>(out.data()), DType::kF32,
                                           count, kOutputs)});
      return out;
    };
    const auto all = multiply(0, rows);
    CHECK(relative_error(all, scalar::linear(in, w.rounded(), {}, {}, Activation::kNone, rows,
                                             kOutputs, kInputs)) < kError);
    for (int64_t row = 0; row < rows; ++row) {
      const auto alone = multiply(row, 1);
      CHECK(std::equal(alone.begin(), alone.end(), all.begin() + row * kOutputs));
    }
  });
}

TEST_CASE("linear multiplies its inputs by Hadamard matrices where the weights were",
          "[sanitizer]") {
  const auto format = GENERATE(Format::kQ4, Format::kQ8);
  const auto c = GENERATE(LinearCase{1, 64, 64, 64}, LinearCase{2, 70, 33, 128},
                          LinearCase{5, 129, 515, 64}, LinearCase{33, 136, 300, 64},
                          LinearCase{97, 100, 96, 192}, LinearCase{8, 70, 1100, 64});
  for (const auto& device : test::test_devices()) {
    INFO(device->name() << ", format " << format_name(format) << " rows " << c.rows << " inputs "
                        << c.inputs);
    check_linear(*device, format, c, Activation::kNone, true);
  }
}

TEST_CASE("a norm in front of linear is that norm by itself", "[sanitizer]") {
  const auto format = GENERATE(Format::kF32, Format::kBF16, Format::kQ4, Format::kQ8);
  const auto kind = GENERATE(NormKind::kLayerNorm, NormKind::kRmsNorm);
  // Few rows are packed in parts of 1,024 columns.
  const auto c = GENERATE(LinearCase{1, 64, 64, 64}, LinearCase{9, 70, 2100, 128},
                          LinearCase{97, 64, 70, 64}, LinearCase{3, 64, 1030, 64});
  for (const auto& device : test::test_devices()) {
    if (!test::thorough() && c.rows * c.inputs > 5000) continue;
    INFO(device->name() << ", format " << format_name(format) << " rows " << c.rows << " inputs "
                        << c.inputs);
    const auto stream = device->new_stream("test");
    const DType type = device->activation_dtype(format);
    const PackedMatrix packed(device->matrix_layout(format), format,
                              random_floats(c.outputs * c.inputs, 2), c.outputs, c.inputs,
                              c.slab_rows);
    const DeviceMatrix weights(*device, *stream, packed);
    const DeviceArray<float> x(*device, *stream, random_floats(c.rows * c.inputs, 1)),
        weight(*device, *stream, random_floats(c.inputs, 3)),
        bias(*device, *stream, random_floats(c.inputs, 4)),
        out(*device, *stream, std::vector<float>(static_cast<size_t>(c.rows * c.outputs)));
    const DeviceArray<std::byte> normed(
        *device, *stream,
        std::vector<std::byte>(static_cast<size_t>(c.rows * c.inputs) * dtype_bytes(type)));
    const MatrixView in = dense_matrix(normed.data(), type, c.rows, c.inputs);
    LinearArgs args{.in = in, .weight = weights.matrix(), .out = out.matrix(c.rows, c.outputs)};
    args.norm = NormArgs{.kind = kind,
                         .in = x.matrix(c.rows, c.inputs),
                         .weight = weight.data(),
                         .bias = bias.data(),
                         .out = in};
    linear(*stream, args);
    const auto found = out.read();
    normalize(*stream, *args.norm);
    args.norm.reset();
    linear(*stream, args);
    CHECK(found == out.read());
  }
}

// Slabs one behind the other are one product; a GPU's library may sum the larger one otherwise.
TEST_CASE("linear over slabs that lie together is that over slabs apart", "[sanitizer]") {
  constexpr int64_t kRows = 3, kOutputs = 150, kInputs = 40;
  for (const auto& device : test::test_devices()) {
    const auto stream = device->new_stream("test");
    const PackedMatrix packed(device->matrix_layout(Format::kF32), Format::kF32,
                              random_floats(kOutputs * kInputs, 2), kOutputs, kInputs, 64);
    const DeviceMatrix apart(*device, *stream, packed);
    std::vector<std::byte> bytes;
    std::vector<size_t> begins;
    for (const WeightSlab& slab : packed.matrix().slabs) {
      begins.push_back(bytes.size());
      bytes.insert(
          bytes.end(), slab.data,
          slab.data + packed_bytes(packed.matrix().layout, Format::kF32, slab.rows, kInputs));
    }
    const DeviceArray<std::byte> together(*device, *stream, bytes);
    std::vector<WeightSlab> slabs;
    for (size_t i = 0; i < begins.size(); ++i) {
      slabs.push_back({together.data() + begins[i], packed.matrix().slabs[i].rows});
    }
    WeightMatrix matrix = apart.matrix();
    const DeviceArray<float> in(*device, *stream, random_floats(kRows * kInputs, 5));
    const DeviceArray<float> a(*device, *stream, std::vector<float>(kRows * kOutputs)),
        b(*device, *stream, std::vector<float>(kRows * kOutputs));
    linear(*stream,
           {.in = in.matrix(kRows, kInputs), .weight = matrix, .out = a.matrix(kRows, kOutputs)});
    matrix.slabs = slabs;
    linear(*stream,
           {.in = in.matrix(kRows, kInputs), .weight = matrix, .out = b.matrix(kRows, kOutputs)});
    const bool exact = !device->discrete() || !test::sums_by_shape();
    CHECK(relative_error(a.read(), b.read()) <= (exact ? 0 : kError));
  }
}

}  // namespace
}  // namespace spillway::linear_test
