// The Phi-3 family (arXiv 2404.14219), with Phi-4: q, k and v in one tensor, gate and up in one.
#include <nlohmann/json.hpp>

#include "kernels/base/json_reader.h"
#include "offload/convert/family.h"
#include "offload/convert/llama_config.h"

namespace spillway {

namespace {

ModelShape read_phi3(JsonReader& reader, const nlohmann::json& config) {
  ModelShape shape = read_llama_shape(
      reader, config,
      {.norm_epsilon = 1e-5, .positions = 4096, .bos = 1, .eos = 32000, .pad = 32000});
  const bool bias = reader.boolean_or("attention_bias", false);
  if (bias || reader.boolean_or("mlp_bias", false)) {
    reader.fail("attention_bias and mlp_bias: Phi-3 has no biases");
  }
  const int64_t window = read_window(reader, config, 0);
  if (!reader.failed()) set_window(window, {}, shape);
  return shape;
}

Result<ModelShape> read_phi3_shape(const nlohmann::json& config) {
  JsonReader reader(config, "config.json");
  const ModelShape shape = read_phi3(reader, config);
  refuse_unknown_arithmetic(reader, config);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return shape;
}

constexpr TensorNames kPhi3Tensors[] = {
    {WeightRole::kTokenEmbedding, {"model.embed_tokens.weight"}},
    {WeightRole::kAttentionNormWeight, {"model.layers.*.input_layernorm.weight"}},
    {WeightRole::kQkvWeight, {"model.layers.*.self_attn.qkv_proj.weight"}},
    {WeightRole::kAttentionOutWeight, {"model.layers.*.self_attn.o_proj.weight"}},
    {WeightRole::kMlpNormWeight, {"model.layers.*.post_attention_layernorm.weight"}},
    {WeightRole::kMlpUpWeight, {"model.layers.*.mlp.gate_up_proj.weight"}},
    {WeightRole::kMlpDownWeight, {"model.layers.*.mlp.down_proj.weight"}},
    {WeightRole::kFinalNormWeight, {"model.norm.weight"}},
    {WeightRole::kHead, {"lm_head.weight"}},
};

}  // namespace

const Family kFamilyPhi3 = {"phi3", read_phi3_shape, kPhi3Tensors, llama_canonical_name,
                            is_llama_leftover};

}  // namespace spillway
