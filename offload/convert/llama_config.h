// What the config.json files of Llama and of the families that follow it have in common. Pure
// functions, any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "kernels/base/json_reader.h"
#include "kernels/base/model_shape.h"
#include "offload/convert/rotary_config.h"

namespace spillway {

// transformers' values for what a family's config may leave out.
struct LlamaDefaults {
  double norm_epsilon = 1e-6;
  int64_t kv_heads = 0;   // 0: as many as query heads
  int64_t head_size = 0;  // 0: hidden_size / num_attention_heads
  int64_t positions = 2048;
  bool tied_head = false;
  int32_t bos = -1;  // -1: none
  int32_t eos = -1;
  int32_t pad = -1;
  RotaryDefaults rotary = {};
};

// The fields of a decoder with RMSNorm, rotary positions, a gated MLP and no biases; a family
// changes what differs. Errors are the reader's.
ModelShape read_llama_shape(JsonReader& reader, const nlohmann::json& config,
                            const LlamaDefaults& defaults);

// The activation of "hidden_act"; an unknown name fails.
Activation read_hidden_act(JsonReader& reader, std::string_view otherwise);

// A token id, or -1 for null, for a list, and for an id outside the vocabulary that the config
// leaves to the default.
int32_t read_token_id(JsonReader& reader, const nlohmann::json& config, const char* key,
                      int64_t vocabulary, int32_t otherwise);

// Layers with a sliding window attend to the last `window` positions. A model with any is run up to
// that length, where the window is the whole sequence: no window is applied then.
void limit_to_window(int64_t window, ModelShape& shape);

// Fails with the name of a field that no read has asked for and that may change what the model
// computes, unless it is off (null, false, 0, 1.0 for a factor, an empty text).
void refuse_unknown_arithmetic(JsonReader& reader, const nlohmann::json& config);

// Names of the tensors without biases, from "model.layers.*.self_attn.q_proj.weight" on.
std::string llama_canonical_name(std::string_view name);
// "...rotary_emb.inv_freq", which old checkpoints have.
bool is_llama_leftover(std::string_view name);

}  // namespace spillway
