// The OPT family: OPT, OPT-IML, Galactica.
#include <nlohmann/json.hpp>

#include "kernels/base/json_reader.h"
#include "kernels/base/quote.h"
#include "offload/convert/family.h"

namespace spillway {

namespace {

// Largest sizes that a config may have.
constexpr int64_t kLayersMax = 1024;
constexpr int64_t kWidthMax = 65536;
constexpr int64_t kRowsMax = int64_t{1} << 20;

// The learned positions start at row 2: an offset left over from the padding token's id.
constexpr int64_t kPositionOffset = 2;

// A token id, or -1 for null. A config without the key has OPT's default id, as in transformers.
int32_t read_token(JsonReader& reader, const nlohmann::json& config, const char* key,
                   int64_t vocabulary, int32_t otherwise) {
  if (!config.contains(key)) return otherwise < vocabulary ? otherwise : -1;
  return static_cast<int32_t>(reader.integer_or(key, -1, vocabulary - 1, -1));
}

Activation read_activation(JsonReader& reader) {
  const std::string name = reader.string_or("activation_function", 64, "relu");
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new") return Activation::kGeluTanh;
  reader.fail("activation_function " + in_quotes(name) + " is not relu, gelu or gelu_new");
  return Activation::kRelu;
}

void read_sizes(JsonReader& reader, ModelShape& shape) {
  shape.layers = reader.integer("num_hidden_layers", 1, kLayersMax);
  shape.hidden = reader.integer("hidden_size", 1, kWidthMax);
  shape.embedding = reader.integer_or("word_embed_proj_dim", 1, kWidthMax, shape.hidden);
  shape.heads = reader.integer("num_attention_heads", 1, kWidthMax);
  shape.mlp = reader.integer("ffn_dim", 1, kRowsMax);
  shape.vocabulary = reader.integer("vocab_size", 1, kRowsMax);
  shape.positions = reader.integer("max_position_embeddings", 1, kRowsMax);
  shape.position_offset = kPositionOffset;
  if (shape.hidden % shape.heads != 0) {
    reader.fail("hidden_size " + std::to_string(shape.hidden) +
                " is not a multiple of num_attention_heads " + std::to_string(shape.heads));
  }
  shape.kv_heads = shape.heads;
  shape.head_size = shape.hidden / shape.heads;
}

Result<ModelShape> read_opt_shape(const nlohmann::json& config) {
  JsonReader reader(config, "config.json");
  ModelShape shape;
  shape.family = "opt";
  read_sizes(reader, shape);
  shape.activation = read_activation(reader);
  shape.norm = NormKind::kLayerNorm;
  shape.norm_affine = reader.boolean_or("layer_norm_elementwise_affine", true);
  const bool pre = reader.boolean_or("do_layer_norm_before", true);
  shape.norm_place = pre ? NormPlace::kPre : NormPlace::kPost;
  // With post-LN the reference builds no final norm, whatever _remove_final_layer_norm says.
  shape.final_norm = pre && !reader.boolean_or("_remove_final_layer_norm", false);
  shape.position = PositionKind::kLearned;
  shape.mlp_kind = MlpKind::kPlain;
  shape.set_biases(reader.boolean_or("enable_bias", true));
  shape.tied_head = reader.boolean_or("tie_word_embeddings", true);
  shape.bos_token = read_token(reader, config, "bos_token_id", shape.vocabulary, 2);
  shape.pad_token = read_token(reader, config, "pad_token_id", shape.vocabulary, 1);
  if (shape.vocabulary > 2) shape.eos_tokens = {2};
  if (reader.has("quantization_config")) {
    reader.fail("quantization_config: quantised checkpoints are not supported; use the original");
  }
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return shape;
}

constexpr TensorNames kOptTensors[] = {
    {WeightRole::kTokenEmbedding, {"decoder.embed_tokens.weight"}},
    {WeightRole::kPositionEmbedding, {"decoder.embed_positions.weight"}},
    {WeightRole::kProjectIn, {"decoder.project_in.weight"}},
    {WeightRole::kAttentionNormWeight, {"decoder.layers.*.self_attn_layer_norm.weight"}},
    {WeightRole::kAttentionNormBias, {"decoder.layers.*.self_attn_layer_norm.bias"}},
    {WeightRole::kQkvWeight,
     {"decoder.layers.*.self_attn.q_proj.weight", "decoder.layers.*.self_attn.k_proj.weight",
      "decoder.layers.*.self_attn.v_proj.weight"}},
    {WeightRole::kQkvBias,
     {"decoder.layers.*.self_attn.q_proj.bias", "decoder.layers.*.self_attn.k_proj.bias",
      "decoder.layers.*.self_attn.v_proj.bias"}},
    {WeightRole::kAttentionOutWeight, {"decoder.layers.*.self_attn.out_proj.weight"}},
    {WeightRole::kAttentionOutBias, {"decoder.layers.*.self_attn.out_proj.bias"}},
    {WeightRole::kMlpNormWeight, {"decoder.layers.*.final_layer_norm.weight"}},
    {WeightRole::kMlpNormBias, {"decoder.layers.*.final_layer_norm.bias"}},
    {WeightRole::kMlpUpWeight, {"decoder.layers.*.fc1.weight"}},
    {WeightRole::kMlpUpBias, {"decoder.layers.*.fc1.bias"}},
    {WeightRole::kMlpDownWeight, {"decoder.layers.*.fc2.weight"}},
    {WeightRole::kMlpDownBias, {"decoder.layers.*.fc2.bias"}},
    {WeightRole::kFinalNormWeight, {"decoder.final_layer_norm.weight"}},
    {WeightRole::kFinalNormBias, {"decoder.final_layer_norm.bias"}},
    {WeightRole::kProjectOut, {"decoder.project_out.weight"}},
    {WeightRole::kHead, {"lm_head.weight"}},
};

// Strips an optional "model." prefix; FlexGen's converter calls the final norm "layer_norm".
std::string canonical_name(std::string_view name) {
  constexpr std::string_view kPrefix = "model.";
  constexpr std::string_view kFlexGenNorm = "decoder.layer_norm.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  if (name.starts_with(kFlexGenNorm)) {
    return "decoder.final_layer_norm." + std::string(name.substr(kFlexGenNorm.size()));
  }
  return std::string(name);
}

// Converters from metaseq leave a version number in checkpoints.
bool is_leftover(std::string_view name) {
  return name == "decoder.version";
}

}  // namespace

const Family kFamilyOpt = {"opt", read_opt_shape, kOptTensors, canonical_name, is_leftover};

}  // namespace spillway
