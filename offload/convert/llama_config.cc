#include "offload/convert/llama_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/quote.h"

namespace spillway {

using nlohmann::json;

namespace {

constexpr int64_t kLayersMax = 1024;
constexpr int64_t kWidthMax = 65536;
constexpr int64_t kRowsMax = int64_t{1} << 20;
constexpr int64_t kWindowMax = int64_t{1} << 30;

void read_sizes(JsonReader& reader, const LlamaDefaults& defaults, ModelShape& shape) {
  shape.layers = reader.integer("num_hidden_layers", 1, kLayersMax);
  shape.hidden = shape.embedding = reader.integer("hidden_size", 1, kWidthMax);
  shape.heads = reader.integer("num_attention_heads", 1, kWidthMax);
  const int64_t kv_heads = defaults.kv_heads == 0 ? shape.heads : defaults.kv_heads;
  shape.kv_heads = reader.integer_or("num_key_value_heads", 1, kWidthMax, kv_heads);
  shape.mlp = reader.integer("intermediate_size", 1, kRowsMax);
  shape.vocabulary = reader.integer("vocab_size", 1, kRowsMax);
  shape.positions = reader.integer_or("max_position_embeddings", 1, kRowsMax, defaults.positions);
  shape.head_size = reader.integer_or("head_dim", 1, 1024, defaults.head_size);
  if (reader.failed() || shape.head_size != 0) return;
  if (shape.hidden % shape.heads != 0) {
    reader.fail("hidden_size " + std::to_string(shape.hidden) +
                " is not a multiple of num_attention_heads " + std::to_string(shape.heads) +
                ", and there is no head_dim");
  }
  shape.head_size = shape.hidden / shape.heads;
}

// Parts of the names of fields that say something about what a model computes.
constexpr std::string_view kArithmetic[] = {
    "scale",  "scaling", "multiplier", "norm",  "rope", "rotary", "attention", "attn",
    "bias",   "window",  "expert",     "moe",   "cap",  "clip",   "residual",  "alibi",
    "logit",  "act",     "mamba",      "ssm",   "conv", "lora",   "quant",     "position",
    "layers", "block",   "parallel",   "sinks", "gate", "router", "embed",     "head",
};

// Fields that match one of these and change nothing here: training, caches, other programs.
constexpr std::string_view kHarmless[] = {
    "attention_dropout",
    "attn_pdrop",
    "resid_pdrop",
    "embd_pdrop",
    "classifier_dropout",
    "hidden_dropout",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation_internal",
    "_attn_implementation_internal",
    "is_llama_config",
    "pretraining_tp",
    "use_flash_attn",
    "flash_attention",
    "activation_dropout",
    "output_attentions",
    "cross_attention_hidden_size",
    "add_cross_attention",
    "chunk_size_feed_forward",
    "pruned_heads",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "tie_encoder_decoder",
    "layer_norm_eps_is_unused",
    "encoder_no_repeat_ngram_size",
    "base_model_tp_plan",
    "num_logits_to_keep",
    "logits_to_keep",
    "gradient_checkpointing",
    "fused_bias_fc",
    "max_window_layers",
    "transformers.js_config",
    "exponential_decay_length_penalty",
    "position_embedding_type_is_unused",
};

bool is_off(std::string_view name, const json& value) {
  if (value.is_null() || value == false || value == "" || value == "none") return true;
  if (value.is_array() || value.is_object()) return value.empty();
  const bool factor = name.find("scale") != std::string_view::npos ||
                      name.find("multiplier") != std::string_view::npos ||
                      name.find("scaling") != std::string_view::npos;
  return value.is_number() && value.get<double>() == (factor ? 1.0 : 0.0);
}

bool may_compute(std::string_view name) {
  if (std::find(std::begin(kHarmless), std::end(kHarmless), name) != std::end(kHarmless)) {
    return false;
  }
  return std::any_of(std::begin(kArithmetic), std::end(kArithmetic), [&](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  });
}

}  // namespace

Activation read_hidden_act(JsonReader& reader, std::string_view otherwise) {
  const std::string name = reader.string_or("hidden_act", 64, std::string(otherwise));
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") {
    return Activation::kGeluTanh;
  }
  reader.fail("hidden_act " + in_quotes(name) +
              " is not silu, relu, gelu, gelu_new, gelu_fast or gelu_pytorch_tanh");
  return Activation::kSilu;
}

int32_t read_token_id(JsonReader& reader, const json& config, const char* key, int64_t vocabulary,
                      int32_t otherwise) {
  const auto found = config.find(key);
  if (found == config.end()) return otherwise < vocabulary ? otherwise : -1;
  if (found->is_array()) {
    reader.find(key);
    return -1;
  }
  return static_cast<int32_t>(reader.integer_or(key, -1, vocabulary - 1, -1));
}

ModelShape read_llama_shape(JsonReader& reader, const json& config, const LlamaDefaults& defaults) {
  ModelShape shape;
  shape.family = config.value("model_type", "");
  read_sizes(reader, defaults, shape);
  if (reader.failed()) return shape;
  read_rotary(reader, config, defaults.rotary, shape);
  shape.norm = NormKind::kRmsNorm;
  shape.norm_epsilon = static_cast<float>(
      reader.find_number("rms_norm_eps", 1e-12, 0.1).value_or(defaults.norm_epsilon));
  shape.mlp_kind = MlpKind::kGated;
  shape.activation = read_hidden_act(reader, "silu");
  shape.set_biases(false);
  shape.tied_head = reader.boolean_or("tie_word_embeddings", defaults.tied_head);
  shape.bos_token = read_token_id(reader, config, "bos_token_id", shape.vocabulary, defaults.bos);
  shape.pad_token = read_token_id(reader, config, "pad_token_id", shape.vocabulary, defaults.pad);
  if (defaults.eos >= 0 && defaults.eos < shape.vocabulary) shape.eos_tokens = {defaults.eos};
  if (reader.has("quantization_config")) {
    reader.fail(
        "quantization_config: checkpoints quantised by other programs are not supported; use the "
        "original, or a GGUF file");
  }
  return shape;
}

int64_t read_window(JsonReader& reader, const json& config, int64_t otherwise) {
  return reader.integer_or("sliding_window", 2, kWindowMax,
                           config.contains("sliding_window") ? 0 : otherwise);
}

std::optional<std::vector<uint8_t>> read_layer_types(JsonReader& reader, int64_t layers) {
  if (!reader.has("layer_types")) {
    reader.find("layer_types");  // null
    return std::nullopt;
  }
  std::vector<uint8_t> slides;
  for (const json& type : reader.array("layer_types", kLayersMax)) {
    if (type != "sliding_attention" && type != "full_attention") {
      reader.fail("layer_types must be 'sliding_attention' or 'full_attention'");
      return std::nullopt;
    }
    slides.push_back(type == "sliding_attention" ? 1 : 0);
  }
  if (!reader.failed() && static_cast<int64_t>(slides.size()) != layers) {
    reader.fail("layer_types has " + std::to_string(slides.size()) + " names for " +
                std::to_string(layers) + " layers");
  }
  return slides;
}

void set_some_windows(JsonReader& reader, int64_t window, std::vector<uint8_t> layers,
                      ModelShape& shape) {
  if (reader.failed()) return;
  const bool some = std::count(layers.begin(), layers.end(), uint8_t{1}) > 0;
  if (some && window == 0) {
    return reader.fail("layer_types has sliding_attention, and there is no sliding_window in use");
  }
  if (some) set_window(window, std::move(layers), shape);
}

void read_qwen_window(JsonReader& reader, const json& config, ModelShape& shape) {
  reader.find("sliding_window");
  const bool on = reader.boolean_or("use_sliding_window", false);
  const int64_t window = on ? read_window(reader, config, 4096) : 0;
  const int64_t full = reader.integer_or("max_window_layers", 0, kWindowMax, 28);
  std::optional<std::vector<uint8_t>> layers = read_layer_types(reader, shape.layers);
  if (!layers) {
    layers.emplace();
    for (int64_t i = 0; i < shape.layers; ++i) {
      layers->push_back(window > 0 && i >= full ? 1 : 0);
    }
  }
  set_some_windows(reader, window, std::move(*layers), shape);
}

void refuse_unknown_arithmetic(JsonReader& reader, const json& config) {
  if (reader.failed()) return;
  for (const std::string_view name : reader.unknown_names()) {
    const json& value = *config.find(name);
    if (!may_compute(name) || is_off(name, value)) continue;
    return reader.fail(in_quotes(name) +
                       " is not a field that this version knows for the family, and it may change "
                       "what the model computes");
  }
}

std::string llama_canonical_name(std::string_view name) {
  return std::string(name);
}

bool is_llama_leftover(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq");
}

}  // namespace spillway
