// The Mistral family (Jiang et al. 2023, arXiv 2310.06825).
#include <nlohmann/json.hpp>

#include "kernels/base/json_reader.h"
#include "offload/convert/family.h"
#include "offload/convert/llama_config.h"

namespace spillway {

namespace {

Result<ModelShape> read_mistral_shape(const nlohmann::json& config) {
  JsonReader reader(config, "config.json");
  ModelShape shape =
      read_llama_shape(reader, config, {.kv_heads = 8, .positions = 131072, .bos = 1, .eos = 2});
  const int64_t window = read_window(reader, config, 4096);
  if (!reader.failed()) set_window(window, {}, shape);
  refuse_unknown_arithmetic(reader, config);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return shape;
}

constexpr TensorNames kMistralTensors[] = {
    {WeightRole::kTokenEmbedding, {"model.embed_tokens.weight"}},
    {WeightRole::kAttentionNormWeight, {"model.layers.*.input_layernorm.weight"}},
    {WeightRole::kQkvWeight,
     {"model.layers.*.self_attn.q_proj.weight", "model.layers.*.self_attn.k_proj.weight",
      "model.layers.*.self_attn.v_proj.weight"}},
    {WeightRole::kAttentionOutWeight, {"model.layers.*.self_attn.o_proj.weight"}},
    {WeightRole::kMlpNormWeight, {"model.layers.*.post_attention_layernorm.weight"}},
    {WeightRole::kMlpUpWeight,
     {"model.layers.*.mlp.gate_proj.weight", "model.layers.*.mlp.up_proj.weight"}},
    {WeightRole::kMlpDownWeight, {"model.layers.*.mlp.down_proj.weight"}},
    {WeightRole::kFinalNormWeight, {"model.norm.weight"}},
    {WeightRole::kHead, {"lm_head.weight"}},
};

}  // namespace

const Family kFamilyMistral = {"mistral", read_mistral_shape, kMistralTensors, llama_canonical_name,
                               is_llama_leftover};

}  // namespace spillway
