#include "tests/support/gguf_of_checkpoint.h"

#include <cmath>
#include <cstring>
#include <map>
#include <numbers>
#include <regex>

#include "offload/convert/checkpoint.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/json_file.h"

namespace spillway::test {

namespace {

using nlohmann::json;

const std::map<std::string, std::string> kNames = {
    {"model.embed_tokens", "token_embd"},
    {"gpt_neox.embed_in", "token_embd"},
    {"model.norm", "output_norm"},
    {"gpt_neox.final_layer_norm", "output_norm"},
    {"lm_head", "output"},
    {"embed_out", "output"},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"attention.query_key_value", "attn_qkv"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.o_proj", "attn_output"},
    {"attention.dense", "attn_output"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.dense_h_to_4h", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.dense_4h_to_h", "ffn_down"},
};

std::string gguf_name(const std::string& name) {
  static const std::regex kInLayer("(?:model|gpt_neox)\\.layers\\.(\\d+)\\.(.*)\\.(weight|bias)");
  std::smatch match;
  if (std::regex_match(name, match, kInLayer)) {
    return "blk." + match[1].str() + "." + kNames.at(match[2].str()) + "." + match[3].str();
  }
  const size_t dot = name.rfind('.');
  return kNames.at(name.substr(0, dot)) + name.substr(dot);
}

// Row `to` of a result is row `from(to)` of `data`.
template <class From>
Bytes reordered(const Bytes& data, int64_t rows, const From& from) {
  const size_t row = data.size() / static_cast<size_t>(rows);
  Bytes result(data.size());
  for (int64_t to = 0; to < rows; ++to) {
    std::memcpy(result.data() + static_cast<size_t>(to) * row,
                data.data() + static_cast<size_t>(from(to)) * row, row);
  }
  return result;
}

class Writer {
 public:
  explicit Writer(const std::string& directory)
      : config_(read_json(directory + "/config.json")), checkpoint_(open(directory)) {
    const std::string type = config_["model_type"];
    architecture_ = type == "mistral" ? "llama" : type == "gpt_neox" ? "gptneox" : type;
    permuted_ =
        architecture_ == "llama" || architecture_ == "granite" || architecture_ == "smollm3";
    heads_ = config_["num_attention_heads"];
    hidden_ = config_["hidden_size"];
    head_dim_ = value("head_dim", hidden_ / heads_);
  }

  Bytes file() {
    write_keys();
    write_rotary();
    for (const CheckpointTensor& tensor : checkpoint_.tensors()) write_tensor(tensor);
    return writer_.file();
  }

 private:
  static Checkpoint open(const std::string& directory) {
    auto checkpoint = Checkpoint::open(directory);
    SPILLWAY_CHECK(checkpoint.ok());
    return std::move(checkpoint).value();
  }

  int64_t value(const char* key, int64_t otherwise) const {
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? otherwise : found->get<int64_t>();
  }
  std::string key(const char* name) const { return architecture_ + "." + name; }

  void write_keys() {
    writer_.add("general.architecture", std::string_view(architecture_));
    writer_.add(key("context_length"), value("max_position_embeddings", 0));
    writer_.add(key("embedding_length"), hidden_);
    writer_.add(key("block_count"), value("num_hidden_layers", 0));
    writer_.add(key("feed_forward_length"), value("intermediate_size", 0));
    writer_.add(key("attention.head_count"), heads_);
    if (architecture_ == "gptneox") {
      writer_.add(key("attention.layer_norm_epsilon"), config_["layer_norm_eps"].get<float>());
      writer_.add(key("use_parallel_residual"), config_["use_parallel_residual"].get<bool>());
    } else {
      writer_.add(key("attention.head_count_kv"), value("num_key_value_heads", heads_));
      writer_.add(key("attention.layer_norm_rms_epsilon"), config_["rms_norm_eps"].get<float>());
      writer_.add(key("attention.key_length"), head_dim_);
      writer_.add(key("attention.value_length"), head_dim_);
    }
    if (architecture_ == "granite") {
      writer_.add(key("attention.scale"), config_["attention_multiplier"].get<float>());
      writer_.add(key("embedding_scale"), config_["embedding_multiplier"].get<float>());
      writer_.add(key("residual_scale"), config_["residual_multiplier"].get<float>());
      writer_.add(key("logit_scale"), config_["logits_scaling"].get<float>());
    }
    for (const auto& [hf, gguf] : {std::pair("bos_token_id", "tokenizer.ggml.bos_token_id"),
                                   {"eos_token_id", "tokenizer.ggml.eos_token_id"}}) {
      if (config_.contains(hf) && config_[hf].is_number()) writer_.add(gguf, value(hf, 0));
    }
  }

  void write_rotary() {
    const double theta = config_.contains("rope_theta") ? config_["rope_theta"].get<double>() : 1e4;
    const double part = config_.contains("partial_rotary_factor")
                            ? config_["partial_rotary_factor"].get<double>()
                            : 1;
    const auto turned = static_cast<int64_t>(static_cast<double>(head_dim_) * part);
    writer_.add(key("rope.freq_base"), static_cast<float>(theta));
    writer_.add(key("rope.dimension_count"), turned);
    const json scaling = config_.value("rope_scaling", json());
    if (!scaling.is_object()) return;
    const std::string type = scaling.value("rope_type", scaling.value("type", ""));
    if (type == "llama3") {
      write_llama3(scaling, theta);
    } else if (type == "longrope") {
      writer_.add(key("rope.scaling.original_context_length"),
                  value("original_max_position_embeddings", 0));
      write_factors("rope_factors_long.weight", scaling["long_factor"]);
      write_factors("rope_factors_short.weight", scaling["short_factor"]);
    } else {
      writer_.add(key("rope.scaling.type"), std::string_view(type));
      writer_.add(key("rope.scaling.factor"), scaling["factor"].get<float>());
      if (!scaling.contains("original_max_position_embeddings")) return;
      writer_.add(key("rope.scaling.original_context_length"),
                  scaling["original_max_position_embeddings"].get<int64_t>());
    }
  }

  void write_factors(const char* name, const json& list) {
    const auto factors = list.get<std::vector<float>>();
    writer_.add_tensor(name, {static_cast<int64_t>(factors.size())}, factors);
  }

  void write_llama3(const json& scaling, double theta) {
    const double factor = scaling["factor"];
    const double low = scaling["low_freq_factor"];
    const double high = scaling["high_freq_factor"];
    const double context = scaling["original_max_position_embeddings"];
    std::vector<float> factors;
    for (int64_t i = 0; i < head_dim_; i += 2) {
      const double frequency =
          std::pow(theta, -static_cast<double>(i) / static_cast<double>(head_dim_));
      const double wavelength = 2 * std::numbers::pi / frequency;
      const double smooth = (context / wavelength - low) / (high - low);
      factors.push_back(static_cast<float>(wavelength < context / high ? 1
                                           : wavelength > context / low
                                               ? factor
                                               : 1 / ((1 - smooth) / factor + smooth)));
    }
    write_factors("rope_freqs.weight", factors);
  }

  void write_tensor(const CheckpointTensor& tensor) {
    const StoredTensor& stored = tensor.stored;
    const std::string name = gguf_name(stored.name);
    Bytes data(stored.bytes);
    SPILLWAY_CHECK(checkpoint_.read(tensor, 0, data).ok());
    const int64_t rows = stored.shape.front();
    const bool q_or_k =
        name.find("attn_q.") != std::string::npos || name.find("attn_k.") != std::string::npos;
    if (permuted_ && q_or_k) {
      // Row 2 i + j of a head was row j * (half the head) + i.
      data = reordered(data, rows, [&](int64_t to) {
        const int64_t in_head = to % head_dim_;
        return to - in_head + in_head % 2 * (head_dim_ / 2) + in_head / 2;
      });
    }
    if (architecture_ == "gptneox" && name.find("attn_qkv.") != std::string::npos) {
      data = reordered(data, rows, [&](int64_t to) {
        const int64_t which = to / hidden_;
        const int64_t head = to % hidden_ / head_dim_;
        return (head * 3 + which) * head_dim_ + to % head_dim_;
      });
    }
    const uint32_t format = stored.format->name == "F32"   ? 0
                            : stored.format->name == "F16" ? 1
                                                           : 30;
    writer_.add_tensor(name, format, stored.shape, data);
  }

  const json config_;
  const Checkpoint checkpoint_;
  std::string architecture_;
  bool permuted_ = false;
  int64_t heads_ = 0;
  int64_t hidden_ = 0;
  int64_t head_dim_ = 0;
  GgufWriter writer_;
};

}  // namespace

void write_gguf_of(const std::string& directory, const std::string& path) {
  write_file(path, Writer(directory).file());
}

}  // namespace spillway::test
