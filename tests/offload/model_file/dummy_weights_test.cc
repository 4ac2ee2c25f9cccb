// Dummy weights: every slab filled, in the distribution they promise, the same for the same seed.
#include "offload/model_file/dummy_weights.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "kernels/base/quantized.h"
#include "tests/support/tiny_shape.h"

namespace spillway::dummy_weights_test {
namespace {

ModelShape small_shape() {
  ModelShape shape = test::make_shape({.hidden = 192, .heads = 3, .mlp = 500, .vocabulary = 777});
  shape.name = "small";
  return shape;
}

std::vector<std::byte> filled(const ModelFileTable& table, uint32_t slab, uint64_t seed) {
  // Memory that was not zero before shows what is left out.
  std::vector<std::byte> bytes(table.slabs[slab].bytes, std::byte{0xa5});
  fill_dummy_slab(table, slab, seed, bytes);
  return bytes;
}

// The tensor's numbers in float32, row-major.
std::vector<float> numbers(const ModelFileTable& table, const TensorInfo& tensor) {
  std::vector<float> all;
  for (uint32_t i = 0; i < tensor.slab_count; ++i) {
    const int64_t rows = tensor.rows_in_slab(i);
    const auto count = static_cast<size_t>(rows * tensor.spec.columns);
    const auto slab = filled(table, tensor.first_slab + i, 7);
    const DType type = unpacked_type(tensor.format);
    std::vector<std::byte> plain(count * dtype_bytes(type));
    unpack_rows(tensor.layout, tensor.format, slab.data(), rows, tensor.spec.columns, plain.data());
    std::vector<float> values(count);
    convert_elements(type, plain.data(), DType::kF32, reinterpret_cast<std::byte*>(values.data()),
                     count);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST_CASE("dummy matrices and tables are uniform with deviation 0.02 in every format") {
  const auto format = GENERATE(from_range(std::begin(kFormats), std::end(kFormats)));
  INFO(format_name(format));
  const auto layout = GENERATE(MatrixLayout::kPanels16, MatrixLayout::kRows);
  const ModelFileTable table = plan_model_file(small_shape(), format, layout);
  for (const TensorInfo& tensor : table.tensors) {
    if (tensor.spec.kind == WeightKind::kVector) continue;
    INFO(role_name(tensor.spec.role));
    double sum = 0, squares = 0;
    const std::vector<float> values = numbers(table, tensor);
    for (const float value : values) {
      sum += double{value};
      squares += double{value} * double{value};
    }
    const auto count = static_cast<double>(values.size());
    CHECK(std::abs(sum / count) < 0.001);
    // Sixteen evenly spaced numbers spread a little more than a uniform one: sqrt(17 / 15).
    CHECK(std::sqrt(squares / count) == Approx(0.02).epsilon(0.08));
  }
}

TEST_CASE("dummy norm weights are 1 and other vectors 0; slabs differ, seeds repeat") {
  const ModelFileTable table = plan_model_file(small_shape(), Format::kQ4, MatrixLayout::kPanels16);
  for (const TensorInfo& tensor : table.tensors) {
    if (tensor.spec.kind != WeightKind::kVector) continue;
    const auto slab = filled(table, tensor.first_slab, 1);
    const auto* values = reinterpret_cast<const float*>(slab.data() + tensor.offset_in_slab);
    const std::string_view role = role_name(tensor.spec.role);
    const float expected = role.ends_with("norm.weight") ? 1.0f : 0.0f;
    INFO(role);
    for (int64_t i = 0; i < tensor.spec.columns; ++i) REQUIRE(values[i] == expected);
  }
  const TensorInfo& up = table.tensors.back();
  CHECK(filled(table, up.first_slab, 1) == filled(table, up.first_slab, 1));
  CHECK(filled(table, up.first_slab, 1) != filled(table, up.first_slab, 2));
  CHECK(filled(table, up.first_slab, 1) != filled(table, 0, 1));
}

}  // namespace
}  // namespace spillway::dummy_weights_test
