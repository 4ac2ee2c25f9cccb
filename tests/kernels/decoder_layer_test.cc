// A layer's working memory goes by its matrices, whatever they are.
#include "kernels/decoder_layer.h"

#include <catch2/catch.hpp>

#include "kernels/base/checked_math.h"
#include "tests/support/tiny_shape.h"

namespace spillway::decoder_layer_test {
namespace {

size_t rounded(int64_t rows, int64_t columns, DType dtype) {
  return round_up(static_cast<uint64_t>(rows * columns) * dtype_bytes(dtype), 64);
}

TEST_CASE("a layer's buffers hold what its matrices read and write") {
  ModelShape shape = test::gated_shape();
  shape.mlp_kind = GENERATE(MlpKind::kPlain, MlpKind::kGated);
  const int64_t tokens = GENERATE(5, kLayerChunkRows + 7);
  const int64_t chunk = std::min(tokens, kLayerChunkRows);
  const LayerBufferSizes sizes = layer_buffer_sizes(shape, DType::kBF16, tokens);
  for (const WeightSpec& spec : weight_specs(shape)) {
    if (spec.layer < 0) continue;
    if (spec.role == WeightRole::kQkvWeight) {
      CHECK(sizes.normed == rounded(chunk, spec.columns, DType::kBF16));
      CHECK(sizes.qkv == rounded(tokens, spec.rows, DType::kF32));
    } else if (spec.role == WeightRole::kAttentionOutWeight) {
      CHECK(sizes.attended == rounded(tokens, spec.columns, DType::kBF16));
    } else if (spec.role == WeightRole::kMlpUpWeight) {
      CHECK(sizes.normed == rounded(chunk, spec.columns, DType::kBF16));
      CHECK(sizes.inner == rounded(chunk, spec.rows, DType::kBF16));
    } else if (spec.role == WeightRole::kMlpDownWeight) {
      CHECK(sizes.inner >= rounded(chunk, spec.columns, DType::kBF16));
    }
  }
}

}  // namespace
}  // namespace spillway::decoder_layer_test
