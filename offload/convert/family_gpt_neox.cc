// The GPT-NeoX family (Black et al. 2022, arXiv 2204.06745), with Pythia: LayerNorm, biases, a
// plain MLP beside attention, rotary positions of a part of each head.
#include <nlohmann/json.hpp>

#include "kernels/base/json_reader.h"
#include "offload/convert/family.h"
#include "offload/convert/llama_config.h"

namespace spillway {

namespace {

// Buffers of old checkpoints: the causal mask and the frequencies.
bool is_leftover(std::string_view name) {
  return name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias") ||
         is_llama_leftover(name);
}

Result<ModelShape> read_gpt_neox_shape(const nlohmann::json& config) {
  JsonReader reader(config, "config.json");
  LlamaDefaults defaults{.positions = 2048, .bos = 0, .eos = 2};
  defaults.rotary = {.theta_key = "rotary_emb_base", .partial = 0.25, .partial_key = "rotary_pct"};
  ModelShape shape = read_llama_shape(reader, config, defaults);
  shape.norm = NormKind::kLayerNorm;
  shape.norm_epsilon =
      static_cast<float>(reader.find_number("layer_norm_eps", 1e-12, 0.1).value_or(1e-5));
  shape.mlp_kind = MlpKind::kPlain;
  shape.activation = read_hidden_act(reader, "gelu");
  for (const char* copy : {"rope_theta", "partial_rotary_factor"}) reader.find(copy);
  const bool bias = reader.boolean_or("attention_bias", true);
  shape.qkv_bias = shape.attention_out_bias = bias;
  shape.mlp_bias = true;
  shape.parallel = reader.boolean_or("use_parallel_residual", true);
  if (shape.kv_heads != shape.heads) reader.fail("num_key_value_heads: GPT-NeoX has none");
  refuse_unknown_arithmetic(reader, config);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return shape;
}

constexpr TensorNames kGpt_neoxTensors[] = {
    {WeightRole::kTokenEmbedding, {"gpt_neox.embed_in.weight"}},
    {WeightRole::kAttentionNormWeight, {"gpt_neox.layers.*.input_layernorm.weight"}},
    {WeightRole::kAttentionNormBias, {"gpt_neox.layers.*.input_layernorm.bias"}},
    {WeightRole::kQkvWeight, {"gpt_neox.layers.*.attention.query_key_value.weight"}},
    {WeightRole::kQkvBias, {"gpt_neox.layers.*.attention.query_key_value.bias"}},
    {WeightRole::kAttentionOutWeight, {"gpt_neox.layers.*.attention.dense.weight"}},
    {WeightRole::kAttentionOutBias, {"gpt_neox.layers.*.attention.dense.bias"}},
    {WeightRole::kMlpNormWeight, {"gpt_neox.layers.*.post_attention_layernorm.weight"}},
    {WeightRole::kMlpNormBias, {"gpt_neox.layers.*.post_attention_layernorm.bias"}},
    {WeightRole::kMlpUpWeight, {"gpt_neox.layers.*.mlp.dense_h_to_4h.weight"}},
    {WeightRole::kMlpUpBias, {"gpt_neox.layers.*.mlp.dense_h_to_4h.bias"}},
    {WeightRole::kMlpDownWeight, {"gpt_neox.layers.*.mlp.dense_4h_to_h.weight"}},
    {WeightRole::kMlpDownBias, {"gpt_neox.layers.*.mlp.dense_4h_to_h.bias"}},
    {WeightRole::kFinalNormWeight, {"gpt_neox.final_layer_norm.weight"}},
    {WeightRole::kFinalNormBias, {"gpt_neox.final_layer_norm.bias"}},
    {WeightRole::kHead, {"embed_out.weight"}},
};

}  // namespace

const Family kFamilyGptNeoX = {"gpt_neox",           read_gpt_neox_shape, kGpt_neoxTensors,
                               llama_canonical_name, is_leftover,         true};

}  // namespace spillway
