// Metadata as config.json: against transformers for a file by PyPI's gguf, and key by key.
#include "offload/convert/gguf_config.h"

#include <catch2/catch.hpp>

#include "tests/support/gguf_writer.h"
#include "tests/support/json_file.h"
#include "tests/support/places.h"

namespace spillway::gguf_config_test {
namespace {

using nlohmann::json;

Result<std::string> text_of(const GgufWriter& writer) {
  auto model = GgufModel::read(memory_source("f.gguf", writer.file()));
  INFO(model.status().message());
  REQUIRE(model.ok());
  return gguf_config_json(model.value());
}

json config_of(const GgufWriter& writer) {
  const auto text = text_of(writer);
  INFO(text.status().message());
  REQUIRE(text.ok());
  return json::parse(text.value());
}

std::string refused(const GgufWriter& writer) {
  const auto text = text_of(writer);
  REQUIRE_FALSE(text.ok());
  CHECK(text.status().code() == Code::kInvalidArgument);
  return std::string(text.status().message());
}

// A model with an embedding of 100 rows.
GgufWriter model(const std::string& architecture) {
  GgufWriter writer = GgufWriter::model(architecture);
  writer.add_tensor("token_embd.weight", {100, 2}, std::vector<float>(200));
  return writer;
}

TEST_CASE("a file of another writer gives what transformers says of it") {
  const std::string folder = test::source_directory() + "/tests/golden/gguf/";
  const json golden = test::read_json(folder + "small.json")["config"];
  const auto opened = GgufModel::open(folder + "small.gguf");
  INFO(opened.status().message());
  REQUIRE(opened.ok());
  const json config = json::parse(gguf_config_json(opened.value()).value());
  REQUIRE(golden.size() > 10);
  for (const auto& [key, value] : golden.items()) {
    INFO(key);
    // transformers shows a float32 with all its digits, ours are the shortest that mean it.
    if (value.is_number_float()) {
      CHECK(config[key].get<float>() == value.get<float>());
    } else {
      CHECK(config[key] == value);
    }
  }
  CHECK(config["rms_norm_eps"] == 1e-5);
  CHECK(config["rope_interleaved"] == true);
}

TEST_CASE("sizes, with what is derived") {
  const json config = config_of(model("qwen2"));
  CHECK(config["model_type"] == "qwen2");
  CHECK(config["architectures"] == json::array({"Qwen2ForCausalLM"}));
  CHECK(config["hidden_size"] == 64);
  CHECK(config["num_hidden_layers"] == 2);
  CHECK(config["num_attention_heads"] == 4);
  CHECK(config["num_key_value_heads"] == 2);
  CHECK(config["head_dim"] == 16);
  CHECK(config["intermediate_size"] == 96);
  CHECK(config["max_position_embeddings"] == 128);
  CHECK(config["vocab_size"] == 100);
  CHECK(config["rms_norm_eps"] == 1e-6);
  CHECK(config["rope_theta"] == 10000.0);
  CHECK(config["tie_word_embeddings"] == true);
  CHECK(config["eos_token_id"].is_null());
  CHECK_FALSE(config.contains("rope_interleaved"));
  CHECK_FALSE(config.contains("rope_scaling"));
  GgufWriter writer = model("qwen3");
  writer.add("qwen3.attention.key_length", int64_t{32});
  writer.add("qwen3.attention.value_length", int64_t{32});
  writer.add_tensor("output.weight", {1, 1}, {1});
  CHECK(config_of(writer)["head_dim"] == 32);
  CHECK(config_of(writer)["tie_word_embeddings"] == false);
  CHECK(config_of(writer)["attention_bias"] == false);
}

TEST_CASE("end tokens may be several") {
  GgufWriter writer = model("llama");
  writer.add("tokenizer.ggml.bos_token_id", int64_t{1});
  writer.add("tokenizer.ggml.eos_token_id", int64_t{2});
  CHECK(config_of(writer)["eos_token_id"] == 2);
  writer.add("tokenizer.ggml.eot_token_id", int64_t{7});
  writer.add("tokenizer.ggml.eom_token_id", int64_t{2});
  writer.add("tokenizer.ggml.padding_token_id", int64_t{-1}, GgufType::kI32);
  const json config = config_of(writer);
  CHECK(config["eos_token_id"] == json::array({2, 7}));
  CHECK(config["bos_token_id"] == 1);
  CHECK(config["pad_token_id"].is_null());
  writer.remove("tokenizer.ggml.bos_token_id");
  writer.add("tokenizer.ggml.bos_token_id", int64_t{100});
  CHECK_THAT(refused(writer), Catch::Contains("bos_token_id") && Catch::Contains("100"));
}

TEST_CASE("rotary positions: Llama 3's factors, linear, yarn") {
  GgufWriter writer = model("llama");
  writer.add_tensor("rope_freqs.weight", {4}, {1, 1, 2.5F, 8});
  CHECK(config_of(writer)["rope_frequency_factors"] == json::array({1.0, 1.0, 2.5, 8.0}));
  writer = model("llama");
  writer.add_tensor("rope_freqs.weight", {2}, {1, 1});
  CHECK_FALSE(config_of(writer).contains("rope_frequency_factors"));
  writer = model("llama");
  writer.add_tensor("rope_freqs.weight", {2}, {1, 0});
  CHECK_THAT(refused(writer), Catch::Contains("'rope_freqs.weight': factor 1"));

  writer = model("llama");
  writer.add("llama.rope.scaling.type", std::string_view("linear"));
  writer.add("llama.rope.scaling.factor", 4.0F);
  CHECK(config_of(writer)["rope_scaling"] == json({{"rope_type", "linear"}, {"factor", 4.0}}));
  writer = model("llama");
  writer.add("llama.rope.scale_linear", 2.0F);
  CHECK(config_of(writer)["rope_scaling"] == json({{"rope_type", "linear"}, {"factor", 2.0}}));

  writer = model("qwen2");
  writer.add("qwen2.rope.scaling.type", std::string_view("yarn"));
  writer.add("qwen2.rope.scaling.factor", 4.0F);
  writer.add("qwen2.rope.scaling.original_context_length", int64_t{32});
  const json yarn = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  CHECK(config_of(writer)["rope_scaling"] == yarn);
  writer.add("qwen2.rope.scaling.attn_factor", 0.5F);
  CHECK(config_of(writer)["rope_scaling"]["attention_factor"].get<double>() ==
        Approx(0.5 * (0.1 * std::log(4.0) + 1)));
  writer.remove("qwen2.rope.scaling.type");
  writer.add("qwen2.rope.scaling.type", std::string_view("spiral"));
  CHECK_THAT(refused(writer), Catch::Contains("'spiral'"));
  writer = model("llama");
  writer.add("llama.rope.dimension_count", int64_t{8});
  CHECK_THAT(refused(writer), Catch::Contains("rope.dimension_count"));
}

TEST_CASE("Phi-3: partial rotation and long factors") {
  GgufWriter writer = model("phi3");
  writer.add("phi3.rope.dimension_count", int64_t{12});
  writer.add("phi3.attention.sliding_window", int64_t{100});
  writer.add("phi3.rope.scaling.original_context_length", int64_t{64});
  // What sqrt(1 + log(128 / 64) / log(64)) gives.
  writer.add("phi3.rope.scaling.attn_factor", 1.08012345F);
  writer.add_tensor("rope_factors_long.weight", {2}, {1.5F, 2});
  writer.add_tensor("rope_factors_short.weight", {2}, {1, 1.25F});
  const json config = config_of(writer);
  CHECK(config["partial_rotary_factor"] == 0.75);
  CHECK(config["sliding_window"] == 100);
  CHECK(config["original_max_position_embeddings"] == 64);
  CHECK(config["rope_scaling"] == json({{"rope_type", "longrope"},
                                        {"long_factor", {1.5, 2.0}},
                                        {"short_factor", {1.0, 1.25}}}));
  writer.remove("phi3.rope.scaling.attn_factor");
  writer.add("phi3.rope.scaling.attn_factor", 1.5F);
  CHECK(config_of(writer)["rope_scaling"]["attention_factor"] == 1.5);
}

TEST_CASE("Granite's multipliers, SmolLM3's layers without rotation, Mistral's window") {
  GgufWriter writer = model("granite");
  writer.add("granite.attention.scale", 0.015625F);
  writer.add("granite.embedding_scale", 12.0F);
  writer.add("granite.residual_scale", 0.22F);
  writer.add("granite.logit_scale", 8.0F);
  const json granite = config_of(writer);
  CHECK(granite["attention_multiplier"] == 0.015625);
  CHECK(granite["embedding_multiplier"] == 12.0);
  CHECK(granite["residual_multiplier"] == 0.22);
  CHECK(granite["logits_scaling"] == 8.0);
  CHECK(granite["rope_interleaved"] == true);
  writer = model("llama");
  writer.add("llama.logit_scale", 1.0F);
  CHECK_FALSE(config_of(writer).contains("logits_scaling"));
  writer.add("llama.residual_scale", 0.5F);
  CHECK_THAT(refused(writer), Catch::Contains("llama.residual_scale"));

  writer = model("smollm3");
  writer.remove("smollm3.block_count");
  writer.add("smollm3.block_count", int64_t{5});
  CHECK(config_of(writer)["no_rope_layers"] == json::array({1, 1, 1, 0, 1}));
  writer = model("llama");
  writer.add("llama.attention.sliding_window", int64_t{64});
  CHECK(config_of(writer)["model_type"] == "mistral");
  CHECK(config_of(writer)["sliding_window"] == 64);
}

TEST_CASE("GPT-NeoX: LayerNorm, partial rotation, parallel residual") {
  GgufWriter writer = model("gptneox");
  writer.remove("gptneox.attention.layer_norm_rms_epsilon");
  CHECK_THAT(refused(writer), Catch::Contains("layer_norm_epsilon"));
  writer.add("gptneox.attention.layer_norm_epsilon", 1e-5F);
  writer.add("gptneox.rope.dimension_count", int64_t{4});
  writer.add("gptneox.use_parallel_residual", false);
  writer.remove("gptneox.attention.head_count_kv");
  writer.add_tensor("blk.0.ffn_up.bias", {1}, {1});
  const json config = config_of(writer);
  CHECK_FALSE(config.contains("mlp_bias"));  // Its MLP always has biases.
  CHECK(config["model_type"] == "gpt_neox");
  CHECK(config["layer_norm_eps"] == 1e-5);
  CHECK(config["rotary_pct"] == 0.25);
  CHECK(config["rotary_emb_base"] == 10000.0);
  CHECK(config["use_parallel_residual"] == false);
  CHECK(config["hidden_act"] == "gelu");
  CHECK(config["num_key_value_heads"] == 4);
}

TEST_CASE("biases are told by their tensors") {
  GgufWriter writer = model("llama");
  CHECK(config_of(writer)["attention_bias"] == false);
  writer.add_tensor("blk.0.attn_q.bias", {2}, {1, 2});
  writer.add_tensor("blk.0.ffn_up.bias", {2}, {1, 2});
  CHECK(config_of(writer)["attention_bias"] == true);
  CHECK(config_of(writer)["mlp_bias"] == true);
}

TEST_CASE("keys that may change the arithmetic are refused, those that say nothing are not") {
  GgufWriter writer = model("llama");
  writer.add("llama.expert_count", int64_t{0});
  writer.add("llama.vocab_size", int64_t{100});
  writer.add("general.anything", std::string_view("x"));
  config_of(writer);
  GgufWriter experts = model("llama");
  experts.add("llama.expert_count", int64_t{8});
  CHECK_THAT(refused(experts), Catch::Contains("llama.expert_count"));
  writer.add("llama.attn_logit_softcapping", 30.0F);
  CHECK_THAT(refused(writer),
             Catch::Contains("llama.attn_logit_softcapping") && Catch::Contains("at byte"));
}

TEST_CASE("missing keys and wrong types are named") {
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length",
        "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    GgufWriter writer = model("llama");
    writer.remove("llama." + std::string(key));
    CHECK_THAT(refused(writer), Catch::Contains(key) && Catch::Contains("missing"));
    writer.add("llama." + std::string(key), std::string_view("text"));
    CHECK_THAT(refused(writer), Catch::Contains(key) && Catch::Contains("it is a string"));
  }
  GgufWriter writer = model("llama");
  writer.add("llama.attention.key_length", int64_t{16});
  writer.add("llama.attention.value_length", int64_t{8});
  CHECK_THAT(refused(writer), Catch::Contains("value_length"));
}

}  // namespace
}  // namespace spillway::gguf_config_test
