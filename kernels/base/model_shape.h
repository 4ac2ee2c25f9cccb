// ModelShape: a model's architecture, in one description for every family. A family
// (offload/convert/family_opt.cc, ...) writes it from a checkpoint's config; nothing outside the
// decoder layer may assume a family. Plain values, any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };
enum class NormPlace : uint8_t { kPre, kPost };  // Before a sublayer, or after its residual sum.
enum class PositionKind : uint8_t { kLearned, kRotary };
enum class MlpKind : uint8_t { kPlain, kGated };  // down(act(up x)); down(act(gate x) * up x).
enum class Activation : uint8_t { kNone, kRelu, kGelu, kGeluTanh, kSilu };

std::string_view activation_name(Activation activation);

// Rotary position embeddings (Su et al. 2021, arXiv 2104.09864): the first `dims` numbers of each
// query and key head are rotated in pairs, pair i by the angle position * frequencies[i]. A family
// computes the frequencies from its config once, whatever its scaling; two kinds of scaling depend
// on a sequence's length, in positions, as well.
struct Rotary {
  int64_t dims = 0;                // Even, at most head_size; 0: the model has learned positions.
  bool interleaved = false;        // Pairs are (2i, 2i + 1), else (i, i + dims / 2).
  float scale = 1.0f;              // Of cosines and sines (YaRN's attention factor)
  std::vector<float> frequencies;  // [dims / 2]
  // LongRoPE (Ding et al. 2024, arXiv 2402.13753): the frequencies of sequences that are longer
  // than switch_length; empty: none.
  std::vector<float> long_frequencies;
  // Dynamic NTK scaling: factor > 0 raises the base theta for a sequence longer than switch_length.
  float dynamic_factor = 0.0f;
  float theta = 10000.0f;
  int64_t switch_length = 0;

  friend bool operator==(const Rotary&, const Rotary&) = default;
};

struct ModelShape {
  std::string family = "opt";
  std::string name;  // For people: "opt-1.3b", or the directory's name.

  int64_t layers = 0;
  int64_t hidden = 0;     // Width of the residual stream.
  int64_t embedding = 0;  // Width of token embeddings and head; != hidden adds two projections.
  int64_t heads = 0;      // Query heads.
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t mlp = 0;         // Inner width of the MLP.
  int64_t vocabulary = 0;  // Rows of the token embedding.
  int64_t positions = 0;   // Longest sequence, prompt and generated tokens together.

  NormKind norm = NormKind::kLayerNorm;
  NormPlace norm_place = NormPlace::kPre;
  bool norm_affine = true;
  bool final_norm = true;
  float norm_epsilon = 1e-5f;
  PositionKind position = PositionKind::kLearned;
  int64_t position_offset = 0;  // Row of position 0 in the table (OPT: 2).
  int64_t position_rows = 0;    // Of the table; 0: positions + position_offset.
  Rotary rotary;
  std::vector<uint8_t>
      rotary_layers;  // 1: the layer rotates, 0: it has no positions; empty: all do
  // Sliding-window attention (Mistral): a query attends to the last `sliding_window` positions up
  // to its own alone. 0: to all.
  int64_t sliding_window = 0;
  std::vector<uint8_t> sliding_layers;  // 1: the layer has the window; empty: all have it
  MlpKind mlp_kind = MlpKind::kPlain;
  Activation activation = Activation::kRelu;
  bool qkv_bias = true;
  bool attention_out_bias = true;
  bool mlp_bias = true;
  bool head_norm = false;  // RMSNorm of each query and key head before it is rotated (Qwen3).
  bool parallel = false;   // Attention and MLP both read the layer's input (GPT-NeoX).
  bool tied_head = true;   // The head is the token embedding.

  // Factors of what they are named after (Granite).
  float embedding_scale = 1.0f;
  float attention_scale = 0.0f;  // Of q k^T; 0: 1 / sqrt(head_size).
  float residual_scale = 1.0f;   // Of what a sublayer adds to the residual stream.
  float logits_scale = 1.0f;

  // Of one of several ranks that share every layer (rank_shape.h): heads, kv_heads and mlp are its
  // own, and hidden is the whole residual stream, which every rank has.
  int64_t ranks = 1;
  int64_t rank = 0;

  int32_t bos_token = -1;  // -1: none.
  int32_t pad_token = -1;
  std::vector<int32_t> eos_tokens;

  int64_t query_width() const { return heads * head_size; }
  int64_t kv_width() const { return kv_heads * head_size; }
  int64_t qkv_width() const { return query_width() + 2 * kv_width(); }
  void set_biases(bool all) { qkv_bias = attention_out_bias = mlp_bias = all; }
  bool rotates(int64_t layer) const {
    return position == PositionKind::kRotary &&
           (rotary_layers.empty() || rotary_layers[static_cast<size_t>(layer)] != 0);
  }

  // The positions that a query of the layer attends to, its own included; 0: all.
  int64_t window(int64_t layer) const {
    const bool slides = sliding_layers.empty() || sliding_layers[static_cast<size_t>(layer)] != 0;
    return slides ? sliding_window : 0;
  }
  int64_t layers_with_window() const {
    if (sliding_window == 0 || sliding_layers.empty()) return sliding_window == 0 ? 0 : layers;
    return std::count(sliding_layers.begin(), sliding_layers.end(), uint8_t{1});
  }

  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

// Shortens the longest sequence to `positions`, where it is longer; the weights stay as they are.
void limit_positions(int64_t positions, ModelShape& shape);

// Gives a window to the layers that are 1 in `layers` (empty: to all). One that is as long as the
// longest sequence is none.
void set_window(int64_t window, std::vector<uint8_t> layers, ModelShape& shape);

// Checks the bounds of every field and their relations (heads divide, products do not overflow).
// Everything that reads a shape from outside calls this before it allocates.
Status validate(const ModelShape& shape);

}  // namespace spillway
