#include "offload/convert/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "kernels/base/quote.h"
#include "offload/convert/gguf_architecture.h"

namespace spillway {

using nlohmann::json;

namespace {

constexpr int64_t kShapeMax = int64_t{1} << 20;
constexpr int64_t kContextMax = int64_t{1} << 30;
constexpr int kNoRopeInterval = 4;  // SmolLM3: llama.cpp has it in its code, the file does not.

// Keys behind "ARCHITECTURE." that are read below or change nothing.
constexpr std::string_view kKnownKeys[] = {"block_count",
                                           "context_length",
                                           "embedding_length",
                                           "feed_forward_length",
                                           "vocab_size",
                                           "tensor_data_layout",
                                           "attention.head_count",
                                           "attention.head_count_kv",
                                           "attention.key_length",
                                           "attention.value_length",
                                           "attention.layer_norm_rms_epsilon",
                                           "attention.layer_norm_epsilon",
                                           "attention.sliding_window",
                                           "attention.scale",
                                           "attention.causal",
                                           "rope.dimension_count",
                                           "rope.freq_base",
                                           "rope.scale_linear",
                                           "rope.scaling.type",
                                           "rope.scaling.factor",
                                           "rope.scaling.attn_factor",
                                           "rope.scaling.original_context_length",
                                           "rope.scaling.finetuned",
                                           "rope.scaling.yarn_beta_fast",
                                           "rope.scaling.yarn_beta_slow",
                                           "embedding_scale",
                                           "residual_scale",
                                           "use_parallel_residual",
                                           "logit_scale",
                                           "expert_count",
                                           "expert_used_count"};

class ConfigWriter {
 public:
  ConfigWriter(const GgufModel& model, const GgufArchitecture& architecture)
      : model_(model), architecture_(architecture), reader_(model.metadata(), model.name()) {}

  Result<std::string> write() {
    check_keys();
    config_["model_type"] = architecture_.model_type;
    config_["architectures"] = json::array({architecture_.class_name});
    config_["hidden_act"] = architecture_.neox ? "gelu" : "silu";
    if (architecture_.interleaved) config_["rope_interleaved"] = true;
    write_sizes();
    write_rotary();
    SPILLWAY_RETURN_IF_ERROR(write_factors());
    write_tensors();
    write_family();
    write_tokens();
    SPILLWAY_RETURN_IF_ERROR(reader_.status());
    return config_.dump(2);
  }

 private:
  std::string key(std::string_view name) const {
    return std::string(architecture_.name) + "." + std::string(name);
  }
  bool has_tensor(std::string_view name) const { return model_.find(name) != nullptr; }

  // A key of the architecture that nobody knows may change the arithmetic.
  void check_keys() {
    const std::string prefix = key("");
    for (const auto& [name, value] : model_.metadata()) {
      if (!name.starts_with(prefix)) continue;
      const std::string_view rest = std::string_view(name).substr(prefix.size());
      if (std::find(std::begin(kKnownKeys), std::end(kKnownKeys), rest) == std::end(kKnownKeys)) {
        reader_.fail(name, "is not known; it may change the arithmetic, so the model is not read");
      }
    }
    // A mixture of experts is another model; some writers say that there are none.
    reader_.find_integer(key("expert_count"), 0, 0);
    reader_.find_integer(key("expert_used_count"), 0, 0);
    if (!reader_.find_boolean(key("attention.causal")).value_or(true)) {
      reader_.fail(key("attention.causal"), "is false: this is no decoder");
    }
  }

  void write_sizes() {
    const int64_t hidden = reader_.integer(key("embedding_length"), 1, kShapeMax);
    const int64_t heads = reader_.integer(key("attention.head_count"), 1, kShapeMax);
    layers_ = reader_.integer(key("block_count"), 1, kShapeMax);
    config_["hidden_size"] = hidden;
    config_["num_hidden_layers"] = layers_;
    config_["num_attention_heads"] = heads;
    config_["num_key_value_heads"] =
        reader_.find_integer(key("attention.head_count_kv"), 1, kShapeMax).value_or(heads);
    config_["intermediate_size"] = reader_.integer(key("feed_forward_length"), 1, kShapeMax);
    config_["max_position_embeddings"] = reader_.integer(key("context_length"), 1, kContextMax);
    const char* epsilon =
        architecture_.neox ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
    config_[architecture_.neox ? "layer_norm_eps" : "rms_norm_eps"] =
        reader_.number(key(epsilon), 0, 1);
    head_dim_ = reader_.find_integer(key("attention.key_length"), 1, kShapeMax)
                    .value_or(std::max<int64_t>(hidden / heads, 1));
    config_["head_dim"] = head_dim_;
    if (reader_.find_integer(key("attention.value_length"), 1, kShapeMax).value_or(head_dim_) !=
        head_dim_) {
      reader_.fail(key("attention.value_length"),
                   "differs from attention.key_length, which is not supported");
    }
    const int64_t window =
        reader_.find_integer(key("attention.sliding_window"), 0, kContextMax).value_or(0);
    if (window == 0) return;
    config_["sliding_window"] = window;
    // Mistral's files are of the architecture "llama"; its window makes it Mistral's model.
    if (architecture_.name == "llama") {
      config_["model_type"] = "mistral";
      config_["architectures"] = json::array({"MistralForCausalLM"});
    } else if (architecture_.name.starts_with("qwen")) {
      config_["use_sliding_window"] = true;
    }
  }

  void write_rotary() {
    config_[architecture_.neox ? "rotary_emb_base" : "rope_theta"] =
        reader_.find_number(key("rope.freq_base"), 1e-6, 1e15).value_or(10000.0);
    const int64_t turned =
        reader_.find_integer(key("rope.dimension_count"), 1, kShapeMax).value_or(head_dim_);
    const bool partial = architecture_.name == "phi3" && turned < head_dim_;
    if (partial || (architecture_.neox && turned <= head_dim_)) {
      // The factor whose product with head_dim, cut to a whole number, is `turned` again.
      double factor = static_cast<double>(turned) / static_cast<double>(head_dim_);
      if (static_cast<int64_t>(factor * static_cast<double>(head_dim_)) < turned) {
        factor = std::nextafter(factor, 1.0);
      }
      config_[architecture_.neox ? "rotary_pct" : "partial_rotary_factor"] = factor;
    } else if (turned != head_dim_) {
      reader_.fail(key("rope.dimension_count"), "is " + std::to_string(turned) + ", heads have " +
                                                    std::to_string(head_dim_) +
                                                    " dimensions, which is not supported");
    }
    original_context_ =
        reader_.find_integer(key("rope.scaling.original_context_length"), 1, kContextMax);
    attention_factor_ = reader_.find_number(key("rope.scaling.attn_factor"), 1e-6, 1e6);
    const double old_factor = reader_.find_number(key("rope.scale_linear"), 1e-6, 1e6).value_or(1);
    std::string type = reader_.find_string(key("rope.scaling.type")).value_or("none");
    if (type == "none" && old_factor != 1) type = "linear";
    if (type == "none" || type == "longrope") return;  // longrope: by its tensors.
    json scaling = {{"rope_type", type}};
    const double factor =
        reader_.find_number(key("rope.scaling.factor"), 1e-6, 1e6).value_or(old_factor);
    scaling["factor"] = factor;
    if (type == "yarn") {
      write_yarn(scaling, factor);
    } else if (type != "linear") {
      reader_.fail(key("rope.scaling.type"),
                   "is " + in_quotes(type) + ", it must be none, linear, yarn or longrope");
    }
    config_["rope_scaling"] = scaling;
  }

  void write_yarn(json& scaling, double factor) {
    if (original_context_) scaling["original_max_position_embeddings"] = *original_context_;
    if (const auto fast = reader_.find_number(key("rope.scaling.yarn_beta_fast"), 0, 1e6)) {
      scaling["beta_fast"] = *fast;
    }
    if (const auto slow = reader_.find_number(key("rope.scaling.yarn_beta_slow"), 0, 1e6)) {
      scaling["beta_slow"] = *slow;
    }
    // llama.cpp multiplies with the factor that the paper derives; transformers takes the product.
    if (attention_factor_ && *attention_factor_ != 1) {
      scaling["attention_factor"] =
          *attention_factor_ * (factor > 1 ? 0.1 * std::log(factor) + 1 : 1);
    }
  }

  // The numbers of a tensor of rotary factors; empty: there is none.
  Result<std::vector<double>> factors_of(std::string_view name) {
    const GgufModelTensor* tensor = model_.find(name);
    if (tensor == nullptr) return std::vector<double>();
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<float> numbers,
                              model_.read_numbers(*tensor, kShapeMax));
    std::vector<double> factors;
    for (const float number : numbers) {
      if (!(number > 0) || !std::isfinite(number)) {
        return invalid_argument(model_.name() + ": tensor " + in_quotes(name) + ": factor " +
                                std::to_string(factors.size()) + " is no positive number");
      }
      factors.push_back(shortest_decimal(number));
    }
    return factors;
  }

  Status write_factors() {
    SPILLWAY_RETURN_IF_ERROR(reader_.status());
    SPILLWAY_ASSIGN_OR_RETURN(const auto factors, factors_of("rope_freqs.weight"));
    if (std::any_of(factors.begin(), factors.end(), [](double factor) { return factor != 1; })) {
      config_["rope_frequency_factors"] = factors;
    }
    SPILLWAY_ASSIGN_OR_RETURN(const auto longer, factors_of("rope_factors_long.weight"));
    SPILLWAY_ASSIGN_OR_RETURN(const auto shorter, factors_of("rope_factors_short.weight"));
    if (longer.empty() && shorter.empty()) return {};
    json scaling = {{"rope_type", "longrope"}, {"long_factor", longer}, {"short_factor", shorter}};
    const double context = config_["max_position_embeddings"].get<double>();
    if (original_context_) {
      config_["original_max_position_embeddings"] = *original_context_;
      const auto original = static_cast<double>(*original_context_);
      // What transformers derives itself is left to it.
      const double derived =
          context > original ? std::sqrt(1 + std::log(context / original) / std::log(original)) : 1;
      if (attention_factor_ && std::abs(*attention_factor_ - derived) > 1e-5) {
        scaling["attention_factor"] = *attention_factor_;
      }
    }
    config_["rope_scaling"] = scaling;
    return {};
  }

  void write_tensors() {
    config_["tie_word_embeddings"] = !has_tensor("output.weight");
    // Qwen2 has no such member: its q, k and v always have biases.
    if (architecture_.name != "qwen2") {
      config_["attention_bias"] =
          has_tensor("blk.0.attn_q.bias") || has_tensor("blk.0.attn_qkv.bias");
    }
    if (!architecture_.neox && has_tensor("blk.0.ffn_up.bias")) config_["mlp_bias"] = true;
    // The embedding has a row for each token, and more where it was padded.
    const GgufModelTensor* embedding = model_.find("token_embd.weight");
    if (embedding != nullptr && embedding->stored.shape.size() == 2) {
      vocabulary_ = embedding->stored.shape.front();
    } else if (const auto* tokens = reader_.find_strings("tokenizer.ggml.tokens")) {
      vocabulary_ = static_cast<int64_t>(tokens->size());
    } else {
      vocabulary_ = reader_.integer(key("vocab_size"), 1, INT32_MAX);
    }
    config_["vocab_size"] = vocabulary_;
  }

  void write_number(std::string_view name, const char* member) {
    if (!reader_.has(key(name))) return;
    const auto value = reader_.find_number(key(name), 1e-9, 1e9);
    if (architecture_.name == "granite") {
      config_[member] = value.value_or(1);
    } else if (value && *value != 1) {
      reader_.fail(key(name), "is not supported in a model of " + std::string(architecture_.name));
    }
  }

  void write_family() {
    write_number("attention.scale", "attention_multiplier");
    write_number("embedding_scale", "embedding_multiplier");
    write_number("residual_scale", "residual_multiplier");
    write_number("logit_scale", "logits_scaling");
    if (architecture_.neox) {
      config_["use_parallel_residual"] =
          reader_.find_boolean(key("use_parallel_residual")).value_or(true);
    }
    if (architecture_.name != "smollm3") return;
    json rotates = json::array();
    for (int64_t layer = 0; layer < layers_; ++layer) {
      rotates.push_back((layer + 1) % kNoRopeInterval != 0 ? 1 : 0);
    }
    config_["no_rope_layers"] = rotates;
    config_["no_rope_layer_interval"] = kNoRopeInterval;
  }

  // Writers put -1 or the greatest number for a token that there is not.
  std::optional<int64_t> token(std::string_view name) {
    const auto id =
        reader_.find_integer("tokenizer.ggml." + std::string(name), INT64_MIN, INT64_MAX);
    if (!id || *id < 0 || *id == UINT32_MAX) return std::nullopt;
    if (*id < vocabulary_) return id;
    reader_.fail("tokenizer.ggml." + std::string(name), "must be below the vocabulary of " +
                                                            std::to_string(vocabulary_) +
                                                            ", it is " + std::to_string(*id));
    return std::nullopt;
  }

  void write_tokens() {
    const auto member = [](std::optional<int64_t> id) { return id ? json(*id) : json(); };
    config_["bos_token_id"] = member(token("bos_token_id"));
    config_["pad_token_id"] = member(token("padding_token_id"));
    std::vector<int64_t> ends;
    for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
      const auto id = token(name);
      if (id && std::find(ends.begin(), ends.end(), *id) == ends.end()) ends.push_back(*id);
    }
    if (ends.size() == 1) {
      config_["eos_token_id"] = ends.front();
    } else {
      config_["eos_token_id"] = ends.empty() ? json() : json(ends);
    }
  }

  const GgufModel& model_;
  const GgufArchitecture& architecture_;
  GgufKeyReader reader_;
  json config_ = json::object();
  int64_t layers_ = 0;
  int64_t head_dim_ = 0;
  int64_t vocabulary_ = 0;
  std::optional<int64_t> original_context_;
  std::optional<double> attention_factor_;
};

}  // namespace

Result<std::string> gguf_config_json(const GgufModel& model) {
  SPILLWAY_ASSIGN_OR_RETURN(const GgufArchitecture* architecture, gguf_architecture_of(model));
  return ConfigWriter(model, *architecture).write();
}

}  // namespace spillway
