// config.json to ModelShape: defaults as in transformers, bounds before anything is allocated.
#include "offload/convert/hf_config.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/weights.h"
#include "offload/config_files.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace spillway::hf_config_test {
namespace {

using nlohmann::json;

json good() {
  return json::parse(opt_config(checkpoint_shape()));
}

Result<HfConfig> parse(const json& config, const std::string& generation = "") {
  return parse_hf_config(config.dump(), generation, "tiny");
}

Result<HfConfig> with(const char* key, const json& value) {
  json config = good();
  config[key] = value;
  return parse(config);
}

TEST_CASE("a config's fields arrive in the shape") {
  ModelShape expected = checkpoint_shape();
  expected.name = "tiny";
  CHECK(parse(good()).value().shape == expected);
  CHECK(with("do_layer_norm_before", false).value().shape.norm_place == NormPlace::kPost);
  CHECK_FALSE(with("do_layer_norm_before", false).value().shape.final_norm);
  CHECK_FALSE(with("_remove_final_layer_norm", true).value().shape.final_norm);
  CHECK(with("word_embed_proj_dim", 16).value().shape.embedding == 16);
  CHECK_FALSE(with("enable_bias", false).value().shape.mlp_bias);
  CHECK_FALSE(with("layer_norm_elementwise_affine", false).value().shape.norm_affine);
  CHECK_FALSE(with("tie_word_embeddings", false).value().shape.tied_head);
  CHECK(with("activation_function", "gelu").value().shape.activation == Activation::kGelu);
  CHECK(with("activation_function", "gelu_new").value().shape.activation == Activation::kGeluTanh);
  CHECK(with("torch_dtype", "float16").value().dtype == DType::kF16);
  CHECK(with("dtype", "bfloat16").value().dtype == DType::kBF16);
  CHECK_FALSE(parse(good()).value().dtype.has_value());
}

TEST_CASE("a config with the required fields alone means what transformers takes it for") {
  const json config = {{"model_type", "opt"},
                       {"hidden_size", 32},
                       {"num_hidden_layers", 2},
                       {"ffn_dim", 64},
                       {"vocab_size", 100},
                       {"num_attention_heads", 4},
                       {"max_position_embeddings", 40}};
  ModelShape expected = checkpoint_shape();
  expected.name = "tiny";
  CHECK(parse(config).value().shape == expected);
}

TEST_CASE("end tokens come from both files, as a number, a list or null") {
  using Tokens = std::vector<int32_t>;
  CHECK(with("eos_token_id", 7).value().shape.eos_tokens == Tokens{7});
  CHECK(with("eos_token_id", {7, 9}).value().shape.eos_tokens == Tokens{7, 9});
  CHECK(with("eos_token_id", nullptr).value().shape.eos_tokens.empty());
  CHECK(parse(good(), R"({"eos_token_id":[5,6]})").value().shape.eos_tokens == Tokens{5, 6});
  CHECK(parse(good(), R"({"max_length":20})").value().shape.eos_tokens == Tokens{2});
  CHECK(with("bos_token_id", nullptr).value().shape.bos_token == -1);
  for (const json& bad : {json(100), json(-1), json(1.5), json("2"), json({2, 100}), json({{1}})}) {
    INFO(bad.dump());
    CHECK_FALSE(with("eos_token_id", bad).ok());
  }
  CHECK_FALSE(with("eos_token_id", std::vector<int>(65, 2)).ok());
  CHECK_FALSE(with("bos_token_id", 100).ok());
  CHECK_FALSE(parse(good(), R"({"eos_token_id":100})").ok());
  CHECK_FALSE(parse(good(), "[]").ok());
}

TEST_CASE("values out of bounds are refused by the field's name") {
  const std::vector<std::pair<const char*, json>> cases = {
      {"num_hidden_layers", 0},
      {"num_hidden_layers", 1025},
      {"num_hidden_layers", -1},
      {"num_hidden_layers", 2.5},
      {"num_hidden_layers", "2"},
      {"num_hidden_layers", nullptr},
      {"hidden_size", 65537},
      {"hidden_size", uint64_t{1} << 63},
      {"ffn_dim", (1 << 20) + 1},
      {"ffn_dim", 0},
      {"vocab_size", (1 << 20) + 1},
      {"max_position_embeddings", (1 << 20) + 1},
      {"num_attention_heads", 5},
      {"num_attention_heads", 64},
      {"word_embed_proj_dim", 0},
      {"activation_function", "silu"},
      {"activation_function", "relu\n"},
      {"do_layer_norm_before", 1},
      {"enable_bias", "true"},
      {"model_type", "bert"},
      {"model_type", 3},
      {"quantization_config", {{"bits", 4}}},
  };
  for (const auto& [key, value] : cases) {
    INFO(key << " = " << value.dump());
    const auto result = with(key, value);
    REQUIRE_FALSE(result.ok());
    // Heads that do not divide are reported with the field they belong to, too.
    CHECK_THAT(std::string(result.status().message()), Catch::Contains(key));
  }
  for (const char* key : {"model_type", "hidden_size", "num_hidden_layers", "ffn_dim", "vocab_size",
                          "num_attention_heads", "max_position_embeddings"}) {
    json config = good();
    config.erase(key);
    const auto result = parse(config);
    REQUIRE_FALSE(result.ok());
    CHECK_THAT(std::string(result.status().message()), Catch::Contains(key));
  }
}

TEST_CASE("text that is no JSON object is refused") {
  const std::string_view nul("{}\0{}", 5);
  for (const std::string_view text :
       {std::string_view(""), std::string_view("[]"), nul, std::string_view("{\"a\":1,\"a\":2}"),
        std::string_view("\xef\xbb\xbf{}"), std::string_view("{\"a\":\"\xff\"}")}) {
    CHECK_FALSE(parse_hf_config(text, "", "x").ok());
  }
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  CHECK_FALSE(parse_hf_config(deep, "", "x").ok());
}

TEST_CASE("a model is called after its directory, or after its cached repository") {
  const TempDirectory temp;
  const std::string snapshot = temp / "models--facebook--opt-125m/snapshots/27dcfa74";
  std::filesystem::create_directories(snapshot);
  write_file(snapshot + "/config.json", good().dump());
  CHECK(read_hf_config(snapshot).value().shape.name == "opt-125m");
  std::filesystem::create_directories(temp / "mine");
  write_file(temp / "mine/config.json", good().dump());
  CHECK(read_hf_config(temp / "mine/").value().shape.name == "mine");
  const Status missing = read_hf_config(temp.path()).status();
  CHECK(missing.code() == Code::kNotFound);
  CHECK_THAT(std::string(missing.message()), Catch::Contains("no config.json"));
}

TEST_CASE("the shapes in configs/models are those of the papers") {
  const std::vector<std::pair<const char*, int64_t>> expected = {
      {"opt-125m", 125'239'296},
      {"opt-350m", 331'196'416},
      {"opt-1.3b", 1'315'758'080},
      {"opt-2.7b", 2'651'596'800},
      {"opt-6.7b", 6'658'473'984},
      {"opt-13b", 12'853'473'280},
      {"opt-30b", 29'974'540'288},
      {"opt-66b", 65'719'701'504},
      {"opt-175b", 174'604'468'224},
      // Counted by transformers.
      {"llama-2-7b", 6'738'415'616},
      {"llama-3.1-70b", 70'553'706'496},
      {"llama-3.1-8b", 8'030'261'248},
      {"llama-3.2-1b", 1'235'814'400},
      {"llama-3.2-3b", 3'212'749'824},
      {"mistral-7b", 7'248'023'552},
      {"mistral-7b-v0.1", 7'241'732'096},
      {"pythia-6.9b", 6'857'302'016},
      {"qwen2.5-3b", 3'085'938'688},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen3-8b", 8'190'735'360},
      {"smollm2-135m", 134'515'008},
  };
  for (const auto& [name, parameters] : expected) {
    INFO(name);
    const auto shape = find_model_shape(name);
    REQUIRE(shape.ok());
    CHECK(shape.value().name == name);
    CHECK(parameter_count(shape.value()) == parameters);
  }
  for (const char* name : {"opt-1.4b", "", "../models/opt-1.3b", "/etc/passwd", "OPT-1.3B"}) {
    const Status status = find_model_shape(name).status();
    CHECK(status.code() == Code::kNotFound);
    CHECK_THAT(std::string(status.message()), Catch::Contains("opt-6.7b"));
  }
}

}  // namespace
}  // namespace spillway::hf_config_test
