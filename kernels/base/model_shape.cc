#include "kernels/base/model_shape.h"

namespace spillway {

namespace {

// Bounds of checkpoint configs: generous for any real model, small enough that no product of them
// overflows 63 bits.
constexpr int64_t kLayersMax = 1024;
constexpr int64_t kWidthMax = 65536;
constexpr int64_t kRowsMax = int64_t{1} << 20;

Status in_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return invalid_argument(std::string(name) + " is " + std::to_string(value) + ", must be " +
                          std::to_string(least) + " to " + std::to_string(most));
}

Status check_token(const char* name, int32_t token, int64_t vocabulary) {
  return in_range(name, token, -1, vocabulary - 1);
}

}  // namespace

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return "none";
    case Activation::kRelu:
      return "relu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kSilu:
      return "silu";
  }
  return "?";
}

Status validate(const ModelShape& shape) {
  SPILLWAY_RETURN_IF_ERROR(in_range("layers", shape.layers, 1, kLayersMax));
  SPILLWAY_RETURN_IF_ERROR(in_range("hidden", shape.hidden, 1, kWidthMax));
  SPILLWAY_RETURN_IF_ERROR(in_range("embedding", shape.embedding, 1, kWidthMax));
  SPILLWAY_RETURN_IF_ERROR(in_range("heads", shape.heads, 1, kWidthMax));
  SPILLWAY_RETURN_IF_ERROR(in_range("kv_heads", shape.kv_heads, 1, shape.heads));
  SPILLWAY_RETURN_IF_ERROR(in_range("head_size", shape.head_size, 1, 1024));
  SPILLWAY_RETURN_IF_ERROR(in_range("query width", shape.query_width(), 1, kWidthMax));
  SPILLWAY_RETURN_IF_ERROR(in_range("mlp", shape.mlp, 1, kRowsMax));
  SPILLWAY_RETURN_IF_ERROR(in_range("vocabulary", shape.vocabulary, 1, kRowsMax));
  SPILLWAY_RETURN_IF_ERROR(in_range("positions", shape.positions, 1, kRowsMax));
  SPILLWAY_RETURN_IF_ERROR(in_range("position_offset", shape.position_offset, 0, 1024));
  if (shape.heads % shape.kv_heads != 0) {
    return invalid_argument("heads (" + std::to_string(shape.heads) +
                            ") must be a multiple of kv_heads (" + std::to_string(shape.kv_heads) +
                            ")");
  }
  if (!(shape.norm_epsilon > 0 && shape.norm_epsilon < 1)) {
    return invalid_argument("norm_epsilon must lie between 0 and 1");
  }
  SPILLWAY_RETURN_IF_ERROR(check_token("bos_token", shape.bos_token, shape.vocabulary));
  SPILLWAY_RETURN_IF_ERROR(check_token("pad_token", shape.pad_token, shape.vocabulary));
  for (int32_t token : shape.eos_tokens) {
    SPILLWAY_RETURN_IF_ERROR(check_token("eos_token", token, shape.vocabulary));
  }
  return {};
}

}  // namespace spillway
