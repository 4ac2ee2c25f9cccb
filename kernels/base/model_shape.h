// ModelShape: a model's architecture, in one description for every family. A family
// (offload/convert/family_opt.cc, ...) writes it from a checkpoint's config; nothing outside the
// decoder layer may assume a family. Plain values, any thread.
#pragma once

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
  MlpKind mlp_kind = MlpKind::kPlain;
  Activation activation = Activation::kRelu;
  bool bias = true;       // In the linear layers of decoder layers.
  bool tied_head = true;  // The head is the token embedding.

  int32_t bos_token = -1;  // -1: none.
  int32_t pad_token = -1;
  std::vector<int32_t> eos_tokens;

  int64_t query_width() const { return heads * head_size; }
  int64_t kv_width() const { return kv_heads * head_size; }
  int64_t qkv_width() const { return query_width() + 2 * kv_width(); }

  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

// Checks the bounds of every field and their relations (heads divide, products do not overflow).
// Everything that reads a shape from outside calls this before it allocates.
Status validate(const ModelShape& shape);

}  // namespace spillway
