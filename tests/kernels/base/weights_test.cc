// What follows from the list of a model's weights, for shapes that no checkpoint of OPT has.
#include "kernels/base/weights.h"

#include <catch2/catch.hpp>

#include "kernels/base/linear_shapes.h"
#include "tests/support/tiny_shape.h"

namespace spillway::weights_test {
namespace {

TEST_CASE("the three parts of the list of weights are the list") {
  const ModelShape shape = test::gated_shape();
  std::vector<WeightSpec> joined = embedding_specs(shape);
  const auto append = [&](const std::vector<WeightSpec>& specs) {
    joined.insert(joined.end(), specs.begin(), specs.end());
  };
  for (int64_t layer = 0; layer < shape.layers; ++layer) append(layer_specs(shape, layer));
  append(head_specs(shape));
  CHECK(joined == weight_specs(shape));
}

TEST_CASE("the linear layers are the matrices of the list of weights") {
  for (const MlpKind mlp : {MlpKind::kPlain, MlpKind::kGated}) {
    ModelShape shape = test::gated_shape();
    shape.mlp_kind = mlp;
    for (const bool one_layer : {false, true}) {
      if (one_layer) shape.layers = 1;
      int64_t of_list = 0, of_layers = 0;
      for (const WeightSpec& spec : weight_specs(shape)) {
        if (spec.kind != WeightKind::kMatrix) continue;
        of_list += spec.elements();
        if (spec.layer >= 0) of_layers += spec.elements();
      }
      int64_t found = 0, in_layers = 0;
      for (const LinearShape& linear : linear_shapes(shape)) {
        found += linear.count * linear.outputs * linear.inputs;
        if (linear.in_layer) in_layers += linear.count * linear.outputs * linear.inputs;
        CHECK(linear.head ==
              (linear.role == WeightRole::kHead || linear.role == WeightRole::kProjectOut));
      }
      CHECK(found == of_list);
      CHECK(in_layers == of_layers);
    }
  }
}

TEST_CASE("a gated MLP's first matrix holds gate and values") {
  const ModelShape shape = test::gated_shape();
  for (const LinearShape& linear : linear_shapes(shape)) {
    if (linear.role == WeightRole::kMlpUpWeight) CHECK(linear.outputs == 2 * shape.mlp);
    if (linear.role == WeightRole::kMlpDownWeight) CHECK(linear.inputs == shape.mlp);
    if (linear.role == WeightRole::kQkvWeight) CHECK(linear.last_outputs == 2 * 2 * 8);
  }
}

}  // namespace
}  // namespace spillway::weights_test
