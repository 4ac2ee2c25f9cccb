// The Granite 3 family, dense models: a Llama with factors of embeddings, attention, residual sums
// and logits.
#include <nlohmann/json.hpp>

#include "kernels/base/json_reader.h"
#include "offload/convert/family.h"
#include "offload/convert/llama_config.h"

namespace spillway {

namespace {

Result<ModelShape> read_granite_shape(const nlohmann::json& config) {
  JsonReader reader(config, "config.json");
  ModelShape shape = read_llama_shape(reader, config, {.bos = 1, .eos = 2});
  const bool bias = reader.boolean_or("attention_bias", false);
  shape.qkv_bias = shape.attention_out_bias = bias;
  shape.mlp_bias = reader.boolean_or("mlp_bias", false);
  const auto factor = [&](const char* key) {
    return static_cast<float>(reader.find_number(key, 1e-6, 1e6).value_or(1));
  };
  shape.embedding_scale = factor("embedding_multiplier");
  shape.attention_scale = factor("attention_multiplier");
  shape.residual_scale = factor("residual_multiplier");
  shape.logits_scale = 1.0f / factor("logits_scaling");
  refuse_unknown_arithmetic(reader, config);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return shape;
}

constexpr TensorNames kGraniteTensors[] = {
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

const Family kFamilyGranite = {"granite", read_granite_shape, kGraniteTensors, llama_canonical_name,
                               is_llama_leftover};

}  // namespace spillway
