// What the config.json files of Llama and of the families that follow it have in common. Pure
// functions, any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// "sliding_window": the last positions that a query attends to, its own included; 0: null, or
// `otherwise` where the field is missing.
int64_t read_window(JsonReader& reader, const nlohmann::json& config, int64_t otherwise);
// "layer_types": 1 for each layer of "sliding_attention", 0 for "full_attention"; none: there is no
// list.
std::optional<std::vector<uint8_t>> read_layer_types(JsonReader& reader, int64_t layers);
// Gives the window to layers that are 1. Fails where there are some and no window.
void set_some_windows(JsonReader& reader, int64_t window, std::vector<uint8_t> layers,
                      ModelShape& shape);
// Qwen's: "use_sliding_window" switches the window on, for the layers from "max_window_layers" on
// or those of "layer_types".
void read_qwen_window(JsonReader& reader, const nlohmann::json& config, ModelShape& shape);

// Fails with the name of a field that no read has asked for and that may change what the model
// computes, unless it is off (null, false, 0, 1.0 for a factor, an empty text).
void refuse_unknown_arithmetic(JsonReader& reader, const nlohmann::json& config);

// Names of the tensors without biases, from "model.layers.*.self_attn.q_proj.weight" on.
std::string llama_canonical_name(std::string_view name);
// "...rotary_emb.inv_freq", which old checkpoints have.
bool is_llama_leftover(std::string_view name);

}  // namespace spillway
