// The SmolLM3 family: a Llama of which some layers have no positions (Yang et al. 2025, arXiv
// 2501.18795).
#include <nlohmann/json.hpp>

#include "kernels/base/json_reader.h"
#include "offload/convert/family.h"
#include "offload/convert/llama_config.h"

namespace spillway {

namespace {

// "no_rope_layers" has a number for each layer: 1, it rotates. Without the list every fourth layer
// does not.
void read_rotary_layers(JsonReader& reader, ModelShape& shape) {
  const int64_t interval = reader.integer_or("no_rope_layer_interval", 1, 1024, 4);
  if (reader.failed()) return;
  if (!reader.has("no_rope_layers")) {
    for (int64_t i = 0; i < shape.layers; ++i) {
      shape.rotary_layers.push_back((i + 1) % interval != 0 ? 1 : 0);
    }
    return;
  }
  const nlohmann::json& list = reader.array("no_rope_layers", 1024);
  for (const nlohmann::json& rotates : list) {
    if (rotates != 0 && rotates != 1) return reader.fail("no_rope_layers must be 0 or 1");
    shape.rotary_layers.push_back(rotates == 1 ? 1 : 0);
  }
  if (static_cast<int64_t>(shape.rotary_layers.size()) != shape.layers) {
    reader.fail("no_rope_layers has " + std::to_string(shape.rotary_layers.size()) +
                " numbers for " + std::to_string(shape.layers) + " layers");
  }
}

// Without "layer_types" the layers without positions have the window.
void read_windows(JsonReader& reader, const nlohmann::json& config, ModelShape& shape) {
  reader.find("sliding_window");
  const bool on = reader.boolean_or("use_sliding_window", false);
  const int64_t window = on ? read_window(reader, config, 0) : 0;
  std::optional<std::vector<uint8_t>> layers = read_layer_types(reader, shape.layers);
  if (!layers) {
    layers.emplace();
    for (const uint8_t rotates : shape.rotary_layers) {
      layers->push_back(window > 0 && rotates == 0 ? 1 : 0);
    }
  }
  // A window that is off is off whatever the list says.
  if (on) set_some_windows(reader, window, std::move(*layers), shape);
}

Result<ModelShape> read_smollm3_shape(const nlohmann::json& config) {
  JsonReader reader(config, "config.json");
  LlamaDefaults defaults{.kv_heads = 4,
                         .positions = 32768,
                         .tied_head = true,
                         .bos = 128000,
                         .eos = 128001,
                         .pad = 128004};
  defaults.rotary.theta = 2000000;
  ModelShape shape = read_llama_shape(reader, config, defaults);
  const bool bias = reader.boolean_or("attention_bias", false);
  shape.qkv_bias = shape.attention_out_bias = bias;
  shape.mlp_bias = reader.boolean_or("mlp_bias", false);
  read_rotary_layers(reader, shape);
  read_windows(reader, config, shape);
  refuse_unknown_arithmetic(reader, config);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return shape;
}

constexpr TensorNames kSmollm3Tensors[] = {
    {WeightRole::kTokenEmbedding, {"model.embed_tokens.weight"}},
    {WeightRole::kAttentionNormWeight, {"model.layers.*.input_layernorm.weight"}},
    {WeightRole::kQkvWeight,
     {"model.layers.*.self_attn.q_proj.weight", "model.layers.*.self_attn.k_proj.weight",
      "model.layers.*.self_attn.v_proj.weight"}},
    {WeightRole::kQkvBias,
     {"model.layers.*.self_attn.q_proj.bias", "model.layers.*.self_attn.k_proj.bias",
      "model.layers.*.self_attn.v_proj.bias"}},
    {WeightRole::kAttentionOutWeight, {"model.layers.*.self_attn.o_proj.weight"}},
    {WeightRole::kAttentionOutBias, {"model.layers.*.self_attn.o_proj.bias"}},
    {WeightRole::kMlpNormWeight, {"model.layers.*.post_attention_layernorm.weight"}},
    {WeightRole::kMlpUpWeight,
     {"model.layers.*.mlp.gate_proj.weight", "model.layers.*.mlp.up_proj.weight"}},
    {WeightRole::kMlpUpBias,
     {"model.layers.*.mlp.gate_proj.bias", "model.layers.*.mlp.up_proj.bias"}},
    {WeightRole::kMlpDownWeight, {"model.layers.*.mlp.down_proj.weight"}},
    {WeightRole::kMlpDownBias, {"model.layers.*.mlp.down_proj.bias"}},
    {WeightRole::kFinalNormWeight, {"model.norm.weight"}},
    {WeightRole::kHead, {"lm_head.weight"}},
};

}  // namespace

const Family kFamilySmolLm3 = {"smollm3", read_smollm3_shape, kSmollm3Tensors, llama_canonical_name,
                               is_llama_leftover};

}  // namespace spillway
