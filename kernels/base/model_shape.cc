#include "kernels/base/model_shape.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

bool all_finite(const std::vector<float>& numbers) {
  for (const float number : numbers) {
    if (!std::isfinite(number)) return false;
  }
  return true;
}

Status check_rotary(const ModelShape& shape) {
  const Rotary& rotary = shape.rotary;
  if (shape.position != PositionKind::kRotary) {
    return in_range("rotary dims of learned positions", rotary.dims, 0, 0);
  }
  SPILLWAY_RETURN_IF_ERROR(in_range("rotary dims", rotary.dims, 2, shape.head_size));
  const auto pairs = static_cast<size_t>(rotary.dims / 2);
  const bool sizes = rotary.dims % 2 == 0 && rotary.frequencies.size() == pairs &&
                     (rotary.long_frequencies.empty() || rotary.long_frequencies.size() == pairs);
  if (!sizes) {
    return invalid_argument("rotary positions over " + std::to_string(rotary.dims) +
                            " numbers of a head need half as many frequencies, not " +
                            std::to_string(rotary.frequencies.size()) + " and " +
                            std::to_string(rotary.long_frequencies.size()));
  }
  const bool numbers = all_finite(rotary.frequencies) && all_finite(rotary.long_frequencies) &&
                       rotary.scale > 0 && rotary.scale < 1e6f && rotary.dynamic_factor >= 0 &&
                       rotary.dynamic_factor < 1e6f && rotary.theta > 1 && rotary.theta < 1e30f;
  if (!numbers) return invalid_argument("rotary frequencies, scale or theta are out of range");
  const bool by_length = rotary.dynamic_factor > 0 || !rotary.long_frequencies.empty();
  SPILLWAY_RETURN_IF_ERROR(
      in_range("rotary switch_length", rotary.switch_length, by_length ? 1 : 0, kRowsMax));
  // The exponent of dynamic scaling is dims / (dims - 2).
  if (rotary.dynamic_factor > 0) {
    SPILLWAY_RETURN_IF_ERROR(
        in_range("rotary dims with dynamic scaling", rotary.dims, 4, shape.head_size));
  }
  const auto count = static_cast<int64_t>(shape.rotary_layers.size());
  return count == 0 ? Status() : in_range("rotary_layers", count, shape.layers, shape.layers);
}

// A window that no sequence exceeds, or that no layer has, is none.
Status check_window(const ModelShape& shape) {
  const auto count = static_cast<int64_t>(shape.sliding_layers.size());
  if (shape.sliding_window == 0) return in_range("sliding_layers without a window", count, 0, 0);
  SPILLWAY_RETURN_IF_ERROR(
      in_range("sliding_window", shape.sliding_window, 2, shape.positions - 1));
  if (count == 0) return {};
  SPILLWAY_RETURN_IF_ERROR(in_range("sliding_layers", count, shape.layers, shape.layers));
  for (const uint8_t slides : shape.sliding_layers) {
    SPILLWAY_RETURN_IF_ERROR(in_range("a number of sliding_layers", slides, 0, 1));
  }
  return in_range("layers with a window", shape.layers_with_window(), 1, shape.layers);
}

Status check_scale(const char* name, float value) {
  if (value > 0 && value < 1e6f) return {};
  return invalid_argument(std::string(name) + " is " + std::to_string(value) +
                          ", must be above 0 and below 1000000");
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

void limit_positions(int64_t positions, ModelShape& shape) {
  if (positions >= shape.positions) return;
  if (shape.position_rows == 0) shape.position_rows = shape.positions + shape.position_offset;
  shape.positions = positions;
  set_window(shape.sliding_window, shape.sliding_layers, shape);
}

void set_window(int64_t window, std::vector<uint8_t> layers, ModelShape& shape) {
  shape.sliding_window = 0;
  shape.sliding_layers.clear();
  const auto slides = [](uint8_t one) { return one != 0; };
  const bool all = std::all_of(layers.begin(), layers.end(), slides);
  const bool none = !layers.empty() && std::none_of(layers.begin(), layers.end(), slides);
  if (window == 0 || window >= shape.positions || none) return;
  shape.sliding_window = window;
  if (!all) shape.sliding_layers = std::move(layers);
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
  SPILLWAY_RETURN_IF_ERROR(in_range("position_rows", shape.position_rows, 0, kRowsMax + 1024));
  if (shape.heads % shape.kv_heads != 0) {
    return invalid_argument("heads (" + std::to_string(shape.heads) +
                            ") must be a multiple of kv_heads (" + std::to_string(shape.kv_heads) +
                            ")");
  }
  if (!(shape.norm_epsilon > 0 && shape.norm_epsilon < 1)) {
    return invalid_argument("norm_epsilon must lie between 0 and 1");
  }
  SPILLWAY_RETURN_IF_ERROR(check_rotary(shape));
  SPILLWAY_RETURN_IF_ERROR(check_window(shape));
  SPILLWAY_RETURN_IF_ERROR(check_scale("embedding_scale", shape.embedding_scale));
  SPILLWAY_RETURN_IF_ERROR(check_scale("residual_scale", shape.residual_scale));
  SPILLWAY_RETURN_IF_ERROR(check_scale("logits_scale", shape.logits_scale));
  if (shape.attention_scale != 0) {
    SPILLWAY_RETURN_IF_ERROR(check_scale("attention_scale", shape.attention_scale));
  }
  SPILLWAY_RETURN_IF_ERROR(check_token("bos_token", shape.bos_token, shape.vocabulary));
  SPILLWAY_RETURN_IF_ERROR(check_token("pad_token", shape.pad_token, shape.vocabulary));
  for (int32_t token : shape.eos_tokens) {
    SPILLWAY_RETURN_IF_ERROR(check_token("eos_token", token, shape.vocabulary));
  }
  return {};
}

}  // namespace spillway
