#include "offload/convert/gguf_architecture.h"

#include <algorithm>
#include <span>

#include "kernels/base/quote.h"

namespace spillway {

namespace {

constexpr GgufArchitecture kArchitectures[] = {
    {"llama", "llama", "LlamaForCausalLM", true, false},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", false, false},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", false, false},
    {"granite", "granite", "GraniteForCausalLM", true, false},
    {"phi3", "phi3", "Phi3ForCausalLM", false, true},
    {"smollm3", "smollm3", "SmolLM3ForCausalLM", true, false},
    {"gptneox", "gpt_neox", "GPTNeoXForCausalLM", false, false, true},
};

struct NamePair {
  std::string_view gguf;
  std::string_view hf;
};

constexpr NamePair kOutsideLayers[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

constexpr NamePair kInLayers[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

constexpr NamePair kOutsideLayersOfNeoX[] = {
    {"token_embd", "gpt_neox.embed_in"},
    {"output_norm", "gpt_neox.final_layer_norm"},
    {"output", "embed_out"},
};

constexpr NamePair kInLayersOfNeoX[] = {
    {"attn_norm", "input_layernorm"},   {"attn_qkv", "attention.query_key_value"},
    {"attn_output", "attention.dense"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_up", "mlp.dense_h_to_4h"},    {"ffn_down", "mlp.dense_4h_to_h"},
};

// Tables of rotary positions: of all layers, and of one in the oldest files.
constexpr std::string_view kRotaryNames[] = {"rope_freqs", "rope_factors_long",
                                             "rope_factors_short", "attn_rot_embd"};

std::string_view find_name(std::span<const NamePair> names, std::string_view gguf) {
  for (const NamePair& pair : names) {
    if (pair.gguf == gguf) return pair.hf;
  }
  return {};
}

}  // namespace

Result<const GgufArchitecture*> gguf_architecture_of(const GgufModel& model) {
  GgufKeyReader reader(model.metadata(), model.name());
  const std::string name = reader.string("general.architecture");
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  std::string known;
  for (const GgufArchitecture& architecture : kArchitectures) {
    if (architecture.name == name) return &architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  reader.fail(
      "general.architecture",
      "is " + in_quotes(name) + ", which is not supported; GGUF files of " + known + " are read");
  return reader.status();
}

std::string hf_tensor_name(const GgufArchitecture& architecture, std::string_view name) {
  const size_t suffix_at = name.rfind('.');
  const std::string_view suffix = suffix_at == std::string_view::npos ? "" : name.substr(suffix_at);
  std::string_view stem = name.substr(0, name.size() - suffix.size());
  const bool neox = architecture.neox;
  std::string layer;
  if (stem.starts_with("blk.")) {
    const size_t end = stem.find('.', 4);
    if (end == std::string_view::npos) return std::string(name);
    layer =
        (neox ? "gpt_neox.layers." : "model.layers.") + std::string(stem.substr(4, end - 4)) + ".";
    stem.remove_prefix(end + 1);
  }
  if (std::find(std::begin(kRotaryNames), std::end(kRotaryNames), stem) != std::end(kRotaryNames)) {
    return {};
  }
  std::string_view hf;
  if (layer.empty()) {
    hf = neox ? find_name(kOutsideLayersOfNeoX, stem) : find_name(kOutsideLayers, stem);
  } else {
    hf = neox ? find_name(kInLayersOfNeoX, stem) : find_name(kInLayers, stem);
  }
  if (architecture.fused && stem == "ffn_up") hf = "mlp.gate_up_proj";
  return hf.empty() ? std::string(name) : layer + std::string(hf) + std::string(suffix);
}

}  // namespace spillway
