// The memory of what the engine makes of a layer's weights goes by the list of weights.
#include "scheduler/engine/expanded_layer.h"

#include <catch2/catch.hpp>

#include "kernels/base/checked_math.h"
#include "scheduler/engine/rounded_biases.h"
#include "tests/support/tiny_shape.h"

namespace spillway::engine_expanded_layer_test {
namespace {

constexpr uint64_t kAlignment = 256;

TEST_CASE("an expanded layer takes the bytes of all matrices of a layer") {
  ModelShape shape = test::gated_shape();
  shape.mlp_kind = GENERATE(MlpKind::kPlain, MlpKind::kGated);
  uint64_t bytes = 0;
  for (const WeightSpec& spec : weight_specs(shape)) {
    if (spec.layer != 0 || spec.kind != WeightKind::kMatrix) continue;
    bytes += round_up(static_cast<uint64_t>(spec.elements()) * 2, kAlignment);
  }
  CHECK(ExpandedLayer::bytes(shape, DType::kF16) == bytes);
}

TEST_CASE("rounded biases take the bytes of every layer's, where there are any") {
  ModelShape shape = test::gated_shape();
  CHECK(RoundedBiases::bytes(shape, all_layers(shape), DType::kF16) == 0);
  shape.set_biases(true);
  uint64_t bytes = 0;
  for (const WeightSpec& spec : weight_specs(shape)) {
    if (spec.role != WeightRole::kMlpUpBias) continue;
    bytes += round_up(static_cast<uint64_t>(spec.elements()) * 2, kAlignment);
  }
  CHECK(bytes > 0);
  CHECK(RoundedBiases::bytes(shape, all_layers(shape), DType::kF16) == bytes);
  CHECK(RoundedBiases::bytes(shape, all_layers(shape), DType::kF32) == 0);
}

}  // namespace
}  // namespace spillway::engine_expanded_layer_test
