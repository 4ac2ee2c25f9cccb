// A gated MLP and its first linear layer on every device: the layer against its definition, on the
// CPU also against linear() and gate_rows(), and the MLP against its two layers, one after the
// other.
//
// SPILLWAY_EMULATION_SEED: 1 2
#include <catch2/catch.hpp>

#include "kernels/ops.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::linear_gated_test {
namespace {

using test::bytes_of;
using test::DeviceArray;
using test::DeviceMatrix;
using test::floats_of;
using test::PackedMatrix;
using test::random_floats;
using test::relative_error;
using test::rounded;

// `outputs`: of each half.
struct Case {
  int64_t rows, outputs, inputs, slab_rows;
};

// Inputs, weights and biases of a case in a device's memory, and room for results.
class Layer {
 public:
  Layer(Device& device, Stream& stream, Format format, const Case& c, bool with_bias)
      : case_(c),
        dtype_(device.activation_dtype(format)),
        in_(rounded(dtype_, random_floats(c.rows * c.inputs, 1))),
        bias_(with_bias ? random_floats(2 * c.outputs, 3) : std::vector<float>()),
        packed_(device.matrix_layout(format), format, random_floats(2 * c.outputs * c.inputs, 2),
                2 * c.outputs, c.inputs, c.slab_rows),
        in_there_(device, stream, bytes_of(dtype_, in_)),
        weights_there_(device, stream, packed_),
        bias_there_(device, stream, bias_),
        inner_(device, stream,
               std::vector<std::byte>(static_cast<size_t>(2 * c.rows * c.outputs) *
                                      dtype_bytes(dtype_))) {}

  GatedLinearArgs args(Activation activation) const {
    return {.in = dense_matrix(in_there_.data(), dtype_, case_.rows, case_.inputs),
            .weight = weights_there_.matrix(),
            .bias = bias_.empty() ? nullptr : bias_there_.data(),
            .activation = activation,
            .inner = inner()};
  }
  MatrixView inner() const {
    return dense_matrix(inner_.data(), dtype_, case_.rows, 2 * case_.outputs);
  }
  // The numbers of a result that lies in `inner`.
  std::vector<float> found(const MatrixView& out) const {
    const std::vector<float> all = floats_of(dtype_, inner_.read());
    std::vector<float> numbers;
    for (int64_t row = 0; row < out.rows; ++row) {
      const auto first = all.begin() + row * out.stride;
      numbers.insert(numbers.end(), first, first + out.columns);
    }
    return numbers;
  }
  std::vector<float> expected(const std::vector<float>& weights, Activation activation) const {
    const auto both = scalar::linear(in_, weights, bias_, {}, Activation::kNone, case_.rows,
                                     2 * case_.outputs, case_.inputs);
    return scalar::gate(activation, both, case_.rows, case_.outputs);
  }
  const std::vector<float>& weights() const { return packed_.rounded(); }
  DType dtype() const { return dtype_; }

 private:
  Case case_;
  DType dtype_;
  std::vector<float> in_, bias_;
  PackedMatrix packed_;
  DeviceArray<std::byte> in_there_;
  DeviceMatrix weights_there_;
  DeviceArray<float> bias_there_;
  DeviceArray<std::byte> inner_;
};

TEST_CASE("linear_gated agrees with its definition", "[sanitizer]") {
  const auto format = GENERATE(from_range(std::begin(kFormats), std::end(kFormats)));
  // Halves of whole tiles and others; slabs that end within a half.
  const auto c = GENERATE(Case{1, 64, 64, 128}, Case{5, 128, 130, 64}, Case{3, 20, 33, 64},
                          Case{7, 96, 70, 64}, Case{97, 64, 128, 64}, Case{19, 192, 515, 128});
  const auto activation = GENERATE(Activation::kSilu, Activation::kGeluTanh);
  const bool with_bias = GENERATE(false, true);
  for (const auto& device : test::test_devices()) {
    if (!test::thorough() && c.rows * c.outputs > 1000) continue;
    INFO(device->name() << ", format " << format_name(format) << ", rows " << c.rows << ", outputs "
                        << c.outputs << ", inputs " << c.inputs);
    const auto stream = device->new_stream("test");
    const Layer layer(*device, *stream, format, c, with_bias);
    const MatrixView out = linear_gated(*stream, layer.args(activation));
    REQUIRE((out.rows == c.rows && out.columns == c.outputs && out.stride >= c.outputs));
    REQUIRE((out.data == layer.inner().data && out.dtype == layer.dtype()));
    const bool codes = is_grouped(format) && c.rows <= kFewRows && c.inputs % 64 == 0;
    const auto weights =
        device->discrete() && !codes ? rounded(layer.dtype(), layer.weights()) : layer.weights();
    // Rounded between the two steps, and after them.
    const double error = layer.dtype() == DType::kF32   ? 2e-5
                         : layer.dtype() == DType::kF16 ? 3 * 0x1p-10
                                                        : 3 * 0x1p-7;
    CHECK(relative_error(layer.found(out), layer.expected(weights, activation)) < error);
  }
}

// In float32 nothing is rounded between the two, whoever multiplies and by how many threads.
TEST_CASE("linear_gated on the CPU has the bits of linear and gate_rows") {
  const auto format = GENERATE(from_range(std::begin(kFormats), std::end(kFormats)));
  const auto products = GENERATE(CpuMatmul::kFloat, CpuMatmul::kInt8, CpuMatmul::kPanels);
  const auto c = GENERATE(Case{1, 128, 300, 64}, Case{4, 64, 512, 128}, Case{30, 192, 256, 128},
                          Case{97, 64, 700, 64}, Case{250, 128, 96, 1024});
  std::vector<float> first;
  for (const int threads : {1, 3}) {
    auto opened = open_cpu_device(threads, products);
    if (!opened.ok()) return;
    const auto device = std::move(opened).value();
    if (device->activation_dtype(format) != DType::kF32) return;
    INFO(device->name() << ", format " << format_name(format) << ", rows " << c.rows);
    const auto stream = device->new_stream("test");
    const Layer layer(*device, *stream, format, c, true);
    const GatedLinearArgs args = layer.args(Activation::kSilu);
    const std::vector<float> fused = layer.found(linear_gated(*stream, args));
    linear(*stream, {.in = args.in, .weight = args.weight, .bias = args.bias, .out = args.inner});
    MatrixView out = args.inner;
    out.columns = c.outputs;
    gate_rows(*stream, {.activation = args.activation, .in = args.inner, .out = out});
    CHECK(fused == layer.found(out));
    if (first.empty()) first = fused;
    CHECK(fused == first);
  }
}

TEST_CASE("linear_gated of no rows does nothing") {
  for (const auto& device : test::test_devices()) {
    const auto stream = device->new_stream("test");
    const Layer layer(*device, *stream, Format::kF32, {0, 64, 32, 64}, true);
    CHECK(linear_gated(*stream, layer.args(Activation::kSilu)).rows == 0);
  }
}

}  // namespace
}  // namespace spillway::linear_gated_test
