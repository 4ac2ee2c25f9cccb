// config.json of Llama and the families that follow it: transformers' defaults, and what is
// refused.
#include "offload/convert/llama_config.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "offload/convert/family.h"
#include "offload/convert/hf_config.h"

namespace spillway::llama_config_test {
namespace {

using nlohmann::json;

json sizes(const char* model_type) {
  return {{"model_type", model_type}, {"hidden_size", 64},        {"intermediate_size", 96},
          {"num_hidden_layers", 4},   {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"vocab_size", 200000}};
}

Result<HfConfig> parse(const json& config) {
  return parse_hf_config(config.dump(), "", "tiny");
}

ModelShape shape_of(const json& config) {
  const Result<HfConfig> parsed = parse(config);
  INFO(parsed.status().message());
  REQUIRE(parsed.ok());
  return parsed.value().shape;
}

std::string refusal(const char* model_type, const char* key, const json& value) {
  json config = sizes(model_type);
  config[key] = value;
  return std::string(parse(config).status().message());
}

TEST_CASE("a family's config with its sizes alone means what transformers takes it for") {
  const ModelShape llama = shape_of(sizes("llama"));
  CHECK(llama.family == "llama");
  CHECK(llama.head_size == 16);
  CHECK(llama.positions == 2048);
  CHECK(llama.norm == NormKind::kRmsNorm);
  CHECK(llama.norm_epsilon == 1e-6f);
  CHECK(llama.rotary.theta == 10000.0f);
  CHECK(llama.mlp_kind == MlpKind::kGated);
  CHECK(llama.activation == Activation::kSilu);
  CHECK_FALSE(llama.qkv_bias);
  CHECK_FALSE(llama.tied_head);
  CHECK(llama.bos_token == 1);
  CHECK(llama.eos_tokens == std::vector<int32_t>{2});

  // A window that is not mentioned is transformers' default.
  const ModelShape mistral = shape_of(sizes("mistral"));
  CHECK(mistral.positions == 131072);
  CHECK(mistral.sliding_window == 4096);
  json no_window = sizes("mistral");
  no_window["sliding_window"] = nullptr;
  CHECK(shape_of(no_window).positions == 131072);
  CHECK(shape_of(no_window).sliding_window == 0);

  const ModelShape qwen2 = shape_of(sizes("qwen2"));
  CHECK(qwen2.qkv_bias);
  CHECK_FALSE(qwen2.attention_out_bias);
  CHECK_FALSE(qwen2.mlp_bias);
  CHECK(qwen2.positions == 32768);
  CHECK(qwen2.eos_tokens.empty());

  const ModelShape qwen3 = shape_of(sizes("qwen3"));
  CHECK(qwen3.head_norm);
  CHECK(qwen3.head_size == 128);
  CHECK_FALSE(qwen3.qkv_bias);

  const ModelShape smollm3 = shape_of(sizes("smollm3"));
  CHECK(smollm3.rotary_layers == std::vector<uint8_t>{1, 1, 1, 0});
  CHECK(smollm3.rotary.theta == 2e6f);
  CHECK(smollm3.tied_head);

  const ModelShape granite = shape_of(sizes("granite"));
  CHECK(granite.attention_scale == 1.0f);
  CHECK(granite.residual_scale == 1.0f);

  const ModelShape phi3 = shape_of(sizes("phi3"));
  CHECK(phi3.norm_epsilon == 1e-5f);
  CHECK(phi3.positions == 4096);
  CHECK(phi3.eos_tokens == std::vector<int32_t>{32000});

  json without_kv_heads = sizes("gpt_neox");
  without_kv_heads.erase("num_key_value_heads");
  const ModelShape neox = shape_of(without_kv_heads);
  CHECK(neox.norm == NormKind::kLayerNorm);
  CHECK(neox.parallel);
  CHECK(neox.rotary.dims == 4);
  CHECK(neox.mlp_kind == MlpKind::kPlain);
  CHECK(neox.activation == Activation::kGelu);
  CHECK(neox.qkv_bias);
}

TEST_CASE("fields that change the arithmetic arrive") {
  json config = sizes("granite");
  config["embedding_multiplier"] = 12;
  config["attention_multiplier"] = 0.015625;
  config["residual_multiplier"] = 0.22;
  config["logits_scaling"] = 8;
  const ModelShape granite = shape_of(config);
  CHECK(granite.embedding_scale == 12.0f);
  CHECK(granite.attention_scale == 0.015625f);
  CHECK(granite.residual_scale == 0.22f);
  CHECK(granite.logits_scale == 0.125f);

  config = sizes("llama");
  config["head_dim"] = 24;
  config["eos_token_id"] = {128001, 128008, 128009};
  config["attention_bias"] = true;
  const ModelShape llama = shape_of(config);
  CHECK(llama.head_size == 24);
  CHECK(llama.eos_tokens == std::vector<int32_t>{128001, 128008, 128009});
  CHECK(llama.qkv_bias);
  CHECK(llama.attention_out_bias);
  CHECK_FALSE(llama.mlp_bias);
}

using Layers = std::vector<uint8_t>;

TEST_CASE("Qwen's window is that of the layers that the config names") {
  json config = sizes("qwen2");
  config["num_hidden_layers"] = 4;
  config["sliding_window"] = 512;
  CHECK(shape_of(config).sliding_window == 0);  // Switched off
  config["use_sliding_window"] = true;
  CHECK(shape_of(config).sliding_window == 0);  // From layer 28 on
  config["max_window_layers"] = 3;
  ModelShape shape = shape_of(config);
  CHECK(shape.positions == 32768);
  CHECK(shape.sliding_window == 512);
  CHECK(shape.sliding_layers == Layers{0, 0, 0, 1});
  CHECK(shape.window(2) == 0);
  CHECK(shape.window(3) == 512);
  CHECK(shape.layers_with_window() == 1);
  config["max_window_layers"] = 0;
  CHECK(shape_of(config).sliding_layers.empty());  // All
  CHECK(shape_of(config).window(0) == 512);
  CHECK(shape_of(config).layers_with_window() == 4);
  config.erase("sliding_window");
  CHECK(shape_of(config).sliding_window == 4096);
  config["sliding_window"] = nullptr;
  CHECK(shape_of(config).sliding_window == 0);
  config["sliding_window"] = 32768;  // No sequence is longer.
  CHECK(shape_of(config).sliding_window == 0);

  config["model_type"] = "qwen3";
  config["sliding_window"] = 64;
  const std::string slides = "sliding_attention", full = "full_attention";
  config["layer_types"] = {slides, full, full, slides};
  CHECK(shape_of(config).sliding_layers == Layers{1, 0, 0, 1});
  config["layer_types"] = {full, full, full, full};
  CHECK(shape_of(config).sliding_window == 0);
}

TEST_CASE("Phi-3's and SmolLM3's windows") {
  json config = sizes("phi3");
  config["sliding_window"] = 2047;
  CHECK(shape_of(config).sliding_window == 2047);
  CHECK(shape_of(config).sliding_layers.empty());

  config = sizes("smollm3");
  config["sliding_window"] = 100;
  CHECK(shape_of(config).sliding_window == 0);
  config["use_sliding_window"] = true;
  // The layers without positions
  CHECK(shape_of(config).sliding_window == 100);
  CHECK(shape_of(config).sliding_layers == Layers{0, 0, 0, 1});
  const std::string slides = "sliding_attention", full = "full_attention";
  config["layer_types"] = {slides, full, full, full};
  CHECK(shape_of(config).sliding_layers == Layers{1, 0, 0, 0});
}

TEST_CASE("windows that say two things are refused") {
  const auto refused = [](json config) { return std::string(parse(config).status().message()); };
  json config = sizes("qwen2");
  const std::string slides = "sliding_attention", full = "full_attention";
  config["layer_types"] = {slides, full, full, full};
  CHECK_THAT(refused(config), Catch::Contains("there is no sliding_window in use"));
  config["use_sliding_window"] = true;
  config["layer_types"] = {slides, full};
  CHECK_THAT(refused(config), Catch::Contains("layer_types has 2 names"));
  config["layer_types"] = {slides, full, full, "chunked_attention"};
  CHECK_THAT(refused(config), Catch::Contains("must be 'sliding_attention'"));
  config = sizes("mistral");
  config["sliding_window"] = 1;
  CHECK_THAT(refused(config), Catch::Contains("sliding_window"));
}

TEST_CASE("an unknown field that may change the arithmetic is refused by name") {
  CHECK_THAT(refusal("llama", "attn_logit_softcapping", 30.0),
             Catch::Contains("'attn_logit_softcapping'"));
  CHECK_THAT(refusal("qwen3", "num_experts", 128), Catch::Contains("'num_experts'"));
  CHECK_THAT(refusal("llama", "embedding_multiplier", 12.0),
             Catch::Contains("'embedding_multiplier'"));
  CHECK_THAT(refusal("llama", "quantization_config", {{"quant_method", "gptq"}}),
             Catch::Contains("quantization_config"));
  CHECK_THAT(refusal("llama", "hidden_act", "mish"), Catch::Contains("'mish'"));
  CHECK_THAT(refusal("phi3", "attention_bias", true), Catch::Contains("Phi-3 has no biases"));
  CHECK_THAT(refusal("smollm3", "no_rope_layers", {1, 0}), Catch::Contains("2 numbers for 4"));
  CHECK_THAT(refusal("llama", "num_key_value_heads", 3), Catch::Contains("multiple of kv_heads"));
}

TEST_CASE("fields that change nothing, or are switched off, are let be") {
  CHECK(refusal("llama", "embedding_multiplier", 1.0) == "");
  CHECK(refusal("llama", "attn_logit_softcapping", nullptr) == "");
  CHECK(refusal("llama", "attention_dropout", 0.1) == "");
  CHECK(refusal("llama", "pretraining_tp", 1) == "");
  CHECK(refusal("llama", "transformers_version", "4.57.6") == "");
  CHECK(refusal("llama", "use_cache", true) == "");
  CHECK(refusal("qwen2", "max_window_layers", 28) == "");
}

TEST_CASE("rows of a tensor that has its heads one by one are taken apart") {
  json config = sizes("gpt_neox");
  config["num_key_value_heads"] = 4;
  const ModelShape shape = shape_of(config);
  const Family& family = *family_of("gpt_neox");
  const auto parts = parts_of(family, shape, layer_spec(shape, WeightRole::kQkvWeight));
  REQUIRE(parts.size() == 12);
  CHECK(parts[0].first_row == 0);     // Query of head 0
  CHECK(parts[1].first_row == 48);    // Query of head 1
  CHECK(parts[4].first_row == 16);    // Key of head 0
  CHECK(parts[11].first_row == 176);  // Value of head 3
  for (const WeightPart& part : parts) {
    CHECK(part.rows == 16);
    CHECK(part.shape == std::vector<int64_t>{192, 64});
  }
}

}  // namespace
}  // namespace spillway::llama_config_test
