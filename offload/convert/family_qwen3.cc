// The Qwen3 family, dense models (arXiv 2505.09388): RMSNorm of each query and key head.
#include <nlohmann/json.hpp>

#include "kernels/base/json_reader.h"
#include "offload/convert/family.h"
#include "offload/convert/llama_config.h"

namespace spillway {

namespace {

Result<ModelShape> read_qwen3_shape(const nlohmann::json& config) {
  JsonReader reader(config, "config.json");
  ModelShape shape =
      read_llama_shape(reader, config, {.kv_heads = 32, .head_size = 128, .positions = 32768});
  shape.head_norm = true;
  const bool bias = reader.boolean_or("attention_bias", false);
  shape.qkv_bias = shape.attention_out_bias = bias;
  read_qwen_window(reader, config, shape);
  refuse_unknown_arithmetic(reader, config);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return shape;
}

constexpr TensorNames kQwen3Tensors[] = {
    {WeightRole::kTokenEmbedding, {"model.embed_tokens.weight"}},
    {WeightRole::kAttentionNormWeight, {"model.layers.*.input_layernorm.weight"}},
    {WeightRole::kQkvWeight,
     {"model.layers.*.self_attn.q_proj.weight", "model.layers.*.self_attn.k_proj.weight",
      "model.layers.*.self_attn.v_proj.weight"}},
    {WeightRole::kQkvBias,
     {"model.layers.*.self_attn.q_proj.bias", "model.layers.*.self_attn.k_proj.bias",
      "model.layers.*.self_attn.v_proj.bias"}},
    {WeightRole::kQueryNormWeight, {"model.layers.*.self_attn.q_norm.weight"}},
    {WeightRole::kKeyNormWeight, {"model.layers.*.self_attn.k_norm.weight"}},
    {WeightRole::kAttentionOutWeight, {"model.layers.*.self_attn.o_proj.weight"}},
    {WeightRole::kAttentionOutBias, {"model.layers.*.self_attn.o_proj.bias"}},
    {WeightRole::kMlpNormWeight, {"model.layers.*.post_attention_layernorm.weight"}},
    {WeightRole::kMlpUpWeight,
     {"model.layers.*.mlp.gate_proj.weight", "model.layers.*.mlp.up_proj.weight"}},
    {WeightRole::kMlpDownWeight, {"model.layers.*.mlp.down_proj.weight"}},
    {WeightRole::kFinalNormWeight, {"model.norm.weight"}},
    {WeightRole::kHead, {"lm_head.weight"}},
};

}  // namespace

const Family kFamilyQwen3 = {"qwen3", read_qwen3_shape, kQwen3Tensors, llama_canonical_name,
                             is_llama_leftover};

}  // namespace spillway
