// The Qwen2 family: Qwen2, Qwen2.5 (arXiv 2407.10671): biases of q, k and v alone.
#include <nlohmann/json.hpp>

#include "kernels/base/json_reader.h"
#include "offload/convert/family.h"
#include "offload/convert/llama_config.h"

namespace spillway {

namespace {

Result<ModelShape> read_qwen2_shape(const nlohmann::json& config) {
  JsonReader reader(config, "config.json");
  ModelShape shape = read_llama_shape(reader, config, {.kv_heads = 32, .positions = 32768});
  shape.qkv_bias = true;
  read_qwen_window(reader, config, shape);
  refuse_unknown_arithmetic(reader, config);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return shape;
}

constexpr TensorNames kQwen2Tensors[] = {
    {WeightRole::kTokenEmbedding, {"model.embed_tokens.weight"}},
    {WeightRole::kAttentionNormWeight, {"model.layers.*.input_layernorm.weight"}},
    {WeightRole::kQkvWeight,
     {"model.layers.*.self_attn.q_proj.weight", "model.layers.*.self_attn.k_proj.weight",
      "model.layers.*.self_attn.v_proj.weight"}},
    {WeightRole::kQkvBias,
     {"model.layers.*.self_attn.q_proj.bias", "model.layers.*.self_attn.k_proj.bias",
      "model.layers.*.self_attn.v_proj.bias"}},
    {WeightRole::kAttentionOutWeight, {"model.layers.*.self_attn.o_proj.weight"}},
    {WeightRole::kMlpNormWeight, {"model.layers.*.post_attention_layernorm.weight"}},
    {WeightRole::kMlpUpWeight,
     {"model.layers.*.mlp.gate_proj.weight", "model.layers.*.mlp.up_proj.weight"}},
    {WeightRole::kMlpDownWeight, {"model.layers.*.mlp.down_proj.weight"}},
    {WeightRole::kFinalNormWeight, {"model.norm.weight"}},
    {WeightRole::kHead, {"lm_head.weight"}},
};

}  // namespace

const Family kFamilyQwen2 = {"qwen2", read_qwen2_shape, kQwen2Tensors, llama_canonical_name,
                             is_llama_leftover};

}  // namespace spillway
