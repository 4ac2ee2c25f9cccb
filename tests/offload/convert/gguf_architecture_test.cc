// Names of architectures and tensors.
#include "offload/convert/gguf_architecture.h"

#include <catch2/catch.hpp>

#include "tests/support/gguf_writer.h"

namespace spillway::gguf_architecture_test {
namespace {

GgufModel model_of(const GgufWriter& writer) {
  auto model = GgufModel::read(memory_source("f.gguf", writer.file()));
  REQUIRE(model.ok());
  return std::move(model).value();
}

const GgufArchitecture& named(const std::string& name) {
  return *gguf_architecture_of(model_of(GgufWriter::model(name))).value();
}

TEST_CASE("an architecture that is not read is named, with those that are") {
  const auto result = gguf_architecture_of(model_of(GgufWriter::model("mamba")));
  REQUIRE_FALSE(result.ok());
  CHECK_THAT(std::string(result.status().message()),
             Catch::Contains("'mamba'") &&
                 Catch::Contains("llama, qwen2, qwen3, granite, phi3, smollm3, gptneox"));
  CHECK_THAT(std::string(gguf_architecture_of(model_of(GgufWriter())).status().message()),
             Catch::Contains("'general.architecture' is missing"));
}

TEST_CASE("tensors get Hugging Face's names") {
  const GgufArchitecture& llama = named("llama");
  const std::pair<const char*, const char*> names[] = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output_norm.weight", "model.norm.weight"},
      {"output.weight", "lm_head.weight"},
      {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
      {"blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"},
      {"blk.12.attn_k.bias", "model.layers.12.self_attn.k_proj.bias"},
      {"blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight"},
      {"blk.1.attn_q_norm.weight", "model.layers.1.self_attn.q_norm.weight"},
      {"blk.1.attn_k_norm.weight", "model.layers.1.self_attn.k_norm.weight"},
      {"blk.1.attn_output.weight", "model.layers.1.self_attn.o_proj.weight"},
      {"blk.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight"},
      {"blk.1.ffn_gate.weight", "model.layers.1.mlp.gate_proj.weight"},
      {"blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight"},
      {"blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"},
      {"rope_freqs.weight", ""},
      {"rope_factors_long.weight", ""},
      {"blk.1.attn_rot_embd.weight", ""},
      // What nobody knows keeps its name and is reported by it.
      {"blk.1.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight"},
      {"blk.1", "blk.1"},
      {"odd", "odd"},
  };
  for (const auto& [gguf, hf] : names) CHECK(hf_tensor_name(llama, gguf) == hf);
  const GgufArchitecture& phi = named("phi3");
  CHECK(hf_tensor_name(phi, "blk.0.ffn_up.weight") == "model.layers.0.mlp.gate_up_proj.weight");
  CHECK(hf_tensor_name(phi, "blk.0.attn_qkv.weight") == "model.layers.0.self_attn.qkv_proj.weight");
}

TEST_CASE("tensors of GPT-NeoX have its own names") {
  const GgufArchitecture& neox = named("gptneox");
  CHECK(hf_tensor_name(neox, "token_embd.weight") == "gpt_neox.embed_in.weight");
  CHECK(hf_tensor_name(neox, "output.weight") == "embed_out.weight");
  CHECK(hf_tensor_name(neox, "output_norm.bias") == "gpt_neox.final_layer_norm.bias");
  CHECK(hf_tensor_name(neox, "blk.3.attn_qkv.bias") ==
        "gpt_neox.layers.3.attention.query_key_value.bias");
  CHECK(hf_tensor_name(neox, "blk.3.ffn_up.weight") ==
        "gpt_neox.layers.3.mlp.dense_h_to_4h.weight");
  CHECK(hf_tensor_name(neox, "blk.3.ffn_gate.weight") == "blk.3.ffn_gate.weight");
}

TEST_CASE("architectures know whose rows are reordered") {
  for (const char* name : {"llama", "granite", "smollm3"}) CHECK(named(name).interleaved);
  for (const char* name : {"qwen2", "qwen3", "phi3", "gptneox"})
    CHECK_FALSE(named(name).interleaved);
}

}  // namespace
}  // namespace spillway::gguf_architecture_test
