// Smoothing: what the factors balance, which pairs of a layer they go between, and the weights that
// the converter makes of them.
#include "offload/convert/smoothing.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "offload/convert/converter.h"
#include "offload/convert/hf_config.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/random_data.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tiny_shape.h"

namespace spillway::smoothing_test {
namespace {

// Magnitudes of which none is a small part of the mean.
std::vector<InputMaxima> random_maxima(const ModelShape& shape, uint64_t seed) {
  std::vector<InputMaxima> maxima = no_maxima(shape);
  for (InputMaxima& layer : maxima) {
    for (std::vector<float>* one :
         {&layer.qkv, &layer.attention_out, &layer.mlp_up, &layer.mlp_down}) {
      const auto numbers = test::random_floats(std::ssize(*one), ++seed);
      for (size_t i = 0; i < one->size(); ++i) (*one)[i] = std::exp(0.5f * numbers[i]);
    }
  }
  return maxima;
}

struct Factors {
  ModelShape shape;
  std::vector<InputMaxima> inputs, columns;
  std::vector<WeightFactors> all;

  explicit Factors(ModelShape model)
      : shape(std::move(model)),
        inputs(random_maxima(shape, 1)),
        columns(random_maxima(shape, 100)),
        all(smoothing_factors(shape, inputs, columns)) {}

  const WeightFactors& of(WeightRole role, int64_t layer = 1) const {
    const auto specs = weight_specs(shape);
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].role == role && specs[i].layer == layer) return all[i];
    }
    FAIL("no such weight");
    return all.front();
  }
};

// The inputs divided by the factors are as large as the columns times them.
void check_balanced(const std::vector<float>& factors, const std::vector<float>& inputs,
                    const std::vector<float>& columns) {
  REQUIRE(factors.size() == inputs.size());
  for (size_t i = 0; i < factors.size(); ++i) {
    REQUIRE(inputs[i] / factors[i] == Approx(columns[i] * factors[i]));
  }
}

TEST_CASE("smoothing balances inputs and columns, between each pair of an OPT's layer") {
  const Factors found(test::tiny_shape(3));
  REQUIRE(found.all.size() == weight_specs(found.shape).size());
  const auto& qkv = found.of(WeightRole::kQkvWeight);
  const auto& up = found.of(WeightRole::kMlpUpWeight);
  const auto& out = found.of(WeightRole::kAttentionOutWeight);
  const auto& down = found.of(WeightRole::kMlpDownWeight);
  check_balanced(qkv.columns, found.inputs[1].qkv, found.columns[1].qkv);
  check_balanced(up.columns, found.inputs[1].mlp_up, found.columns[1].mlp_up);
  check_balanced(out.columns, found.inputs[1].attention_out, found.columns[1].attention_out);
  check_balanced(down.columns, found.inputs[1].mlp_down, found.columns[1].mlp_down);
  // What divides, and what stays.
  const auto divides = [](const std::vector<float>& rows, size_t first,
                          const std::vector<float>& columns) {
    for (size_t i = 0; i < first; ++i) REQUIRE(rows[i] == 1);
    REQUIRE(rows.size() == first + columns.size());
    for (size_t i = 0; i < columns.size(); ++i) {
      REQUIRE(rows[first + i] * columns[i] == Approx(1));
    }
  };
  for (const WeightRole role : {WeightRole::kAttentionNormWeight, WeightRole::kAttentionNormBias}) {
    divides(found.of(role).rows, 0, qkv.columns);
  }
  for (const WeightRole role : {WeightRole::kMlpNormWeight, WeightRole::kMlpNormBias}) {
    divides(found.of(role).rows, 0, up.columns);
  }
  for (const WeightRole role : {WeightRole::kQkvWeight, WeightRole::kQkvBias}) {
    divides(found.of(role).rows, 64, out.columns);
  }
  for (const WeightRole role : {WeightRole::kMlpUpWeight, WeightRole::kMlpUpBias}) {
    divides(found.of(role).rows, 0, down.columns);
  }
  CHECK(found.of(WeightRole::kAttentionOutBias).none());
  CHECK(found.of(WeightRole::kMlpDownBias).none());
  CHECK(found.of(WeightRole::kTokenEmbedding, -1).none());
  CHECK(found.of(WeightRole::kHead, -1).none());
}

TEST_CASE("smoothing leaves gates alone, and query heads share their value head's factors") {
  const Factors found(test::gated_shape());
  const ModelShape& shape = found.shape;
  const auto& up = found.of(WeightRole::kMlpUpWeight);
  REQUIRE(std::ssize(up.rows) == 2 * shape.mlp);
  for (int64_t i = 0; i < shape.mlp; ++i) REQUIRE(up.rows[static_cast<size_t>(i)] == 1);
  const auto& out = found.of(WeightRole::kAttentionOutWeight).columns;
  const auto& qkv = found.of(WeightRole::kQkvWeight).rows;
  REQUIRE(shape.heads == 2 * shape.kv_heads);
  for (int64_t head = 0; head < shape.heads; ++head) {
    for (int64_t i = 0; i < shape.head_size; ++i) {
      const int64_t value = shape.query_width() + shape.kv_width() + head / 2 * shape.head_size + i;
      const float column = out[static_cast<size_t>(head * shape.head_size + i)];
      REQUIRE(column * qkv[static_cast<size_t>(value)] == Approx(1));
    }
  }
}

TEST_CASE("smoothing leaves pairs that a layer does not have so") {
  ModelShape shape = test::tiny_shape(2);
  shape.activation = Activation::kGelu;
  shape.norm_place = NormPlace::kPost;
  const Factors found(shape);
  CHECK(found.of(WeightRole::kMlpDownWeight).none());
  CHECK(found.of(WeightRole::kMlpUpWeight).none());
  CHECK(found.of(WeightRole::kMlpUpBias).none());
  CHECK(found.of(WeightRole::kAttentionNormWeight).none());
  CHECK(found.of(WeightRole::kMlpNormBias).none());
  CHECK(found.of(WeightRole::kQkvWeight).columns.empty());
  CHECK_FALSE(found.of(WeightRole::kAttentionOutWeight).none());
}

TEST_CASE("channels that a text hardly used, or that are damaged, are not smoothed away") {
  const ModelShape shape = test::tiny_shape(1);
  auto inputs = no_maxima(shape), columns = no_maxima(shape);
  std::fill(inputs[0].qkv.begin(), inputs[0].qkv.end(), 1.0f);
  std::fill(columns[0].qkv.begin(), columns[0].qkv.end(), 1.0f);
  inputs[0].qkv[3] = 1e-9f;
  columns[0].qkv[5] = 0;
  columns[0].qkv[6] = INFINITY;
  inputs[0].qkv[7] = 100;
  const auto specs = weight_specs(shape);
  const auto all = smoothing_factors(shape, inputs, columns);
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].role != WeightRole::kQkvWeight) continue;
    CHECK(all[i].columns[3] > 0.1f);
    CHECK(all[i].columns[3] < 1);
    CHECK(all[i].columns[5] == 1);
    CHECK(all[i].columns[6] == 1);
    CHECK(all[i].columns[7] == Approx(10));
  }
}

TEST_CASE("maxima are of magnitudes, by channel, without what is not finite") {
  std::vector<float> maxima = {0, 2, 0};
  note_inputs(std::vector<float>{-1, 1, NAN, 0.5f, -3, -INFINITY}, maxima);
  CHECK(maxima == std::vector<float>{1, 3, 0});
}

TEST_CASE("the converter multiplies a checkpoint's weights by their factors") {
  const ModelShape shape = checkpoint_shape();
  const TempDirectory temp;
  std::filesystem::create_directory(temp / "m");
  write_file(temp / "m/config.json", opt_config(shape));
  const auto tensors = opt_tensors(shape);
  write_file(temp / "m/model.safetensors", safetensors_file(tensors));
  ConvertOptions options;
  options.format = Format::kF32;
  options.calibration = random_maxima(shape, 7);
  const auto report = convert_checkpoint(temp / "m", temp / "s.spill", options);
  INFO(report.status().message());
  REQUIRE(report.ok());
  ConvertOptions plain = options;
  plain.calibration.clear();
  REQUIRE(convert_checkpoint(temp / "m", temp / "p.spill", plain).ok());
  const ModelFile smoothed = ModelFile::open(temp / "s.spill").value();
  const ModelFile before = ModelFile::open(temp / "p.spill").value();
  // Files of one checkpoint, and different models.
  CHECK(smoothed.table().source.starts_with(before.table().source));
  CHECK(smoothed.table().source != before.table().source);
  const auto numbers = [](const ModelFile& file, const TensorInfo& tensor) {
    std::vector<std::byte> slab(file.table().slabs[tensor.first_slab].bytes);
    REQUIRE(file.read_slab(tensor.first_slab, slab).ok());
    std::vector<float> found(static_cast<size_t>(tensor.spec.elements()));
    unpack_rows(tensor.layout, tensor.format, slab.data() + tensor.offset_in_slab, tensor.spec.rows,
                tensor.spec.columns, reinterpret_cast<std::byte*>(found.data()));
    return found;
  };
  // Of the columns of the up projection's matrix the definition's maxima.
  const auto checkpoint = Checkpoint::open(temp / "m");
  const auto config = read_hf_config(temp / "m");
  const auto map = map_weights(*family_of("opt"), config->shape, checkpoint.value()).value();
  const auto columns = column_maxima(config->shape, checkpoint.value(), map, 2, {}).value();
  const auto factors = smoothing_factors(config->shape, options.calibration, columns);
  int changed = 0;
  for (size_t i = 0; i < before.table().tensors.size(); ++i) {
    const TensorInfo& tensor = before.table().tensors[i];
    INFO(tensor.name());
    auto expected = numbers(before, tensor);
    if (tensor.spec.role == WeightRole::kMlpUpWeight) {
      std::vector<float> most(static_cast<size_t>(tensor.spec.columns));
      note_inputs(expected, most);
      CHECK(most == columns[static_cast<size_t>(tensor.spec.layer)].mlp_up);
    }
    const bool vector = tensor.spec.kind == WeightKind::kVector;
    apply_factors(factors[i], 0, vector ? tensor.spec.columns : tensor.spec.rows,
                  vector ? 1 : tensor.spec.columns, expected.data());
    changed += factors[i].none() ? 0 : 1;
    CHECK(numbers(smoothed, smoothed.table().tensors[i]) == expected);
  }
  CHECK(changed == 10 * shape.layers);
  // Quantised, it is the quantisation of these numbers.
  options.format = Format::kQ8;
  REQUIRE(convert_checkpoint(temp / "m", temp / "q.spill", options).ok());
  const ModelFile quantised = ModelFile::open(temp / "q.spill").value();
  for (const TensorInfo& tensor : quantised.table().tensors) {
    if (tensor.spec.kind != WeightKind::kMatrix || tensor.spec.layer < 0) continue;
    const size_t i = static_cast<size_t>(&tensor - quantised.table().tensors.data());
    const auto exact = scalar::hadamard(numbers(smoothed, smoothed.table().tensors[i]),
                                        tensor.spec.columns, false);
    const auto found = numbers(quantised, tensor);
    CHECK(test::relative_error(found, exact) < 1.0 / 250);
    CHECK(tensor.quantization.relative_rms() > 0);
  }
}

}  // namespace
}  // namespace spillway::smoothing_test
