#include "tests/support/checkpoint_writer.h"

#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/base/check.h"
#include "tests/support/tiny_shape.h"

namespace spillway {

using nlohmann::json;

namespace {

const char* stored_name(DType dtype) {
  return dtype == DType::kF32 ? "F32" : dtype == DType::kBF16 ? "BF16" : "F16";
}

DType dtype_of_stored(std::string_view name) {
  return name == "F32" ? DType::kF32 : name == "BF16" ? DType::kBF16 : DType::kF16;
}

}  // namespace

Bytes bytes_of(std::string_view text) {
  Bytes bytes;
  append(bytes, text);
  return bytes;
}

void append(Bytes& bytes, std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  bytes.insert(bytes.end(), data, data + text.size());
}

void append_little(Bytes& bytes, uint64_t value, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    bytes.push_back(static_cast<std::byte>(i < 8 ? value >> (8 * i) : 0));
  }
}

void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  out.close();
  SPILLWAY_CHECK(out.good());
}

void write_file(const std::string& path, std::string_view text) {
  write_file(path, bytes_of(text));
}

TensorData make_tensor(std::string name, std::vector<int64_t> shape, DType dtype) {
  std::minstd_rand random(static_cast<uint32_t>(std::hash<std::string>()(name)));
  std::uniform_real_distribution<float> uniform(-1, 1);
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  TensorData tensor{std::move(name), stored_name(dtype), std::move(shape), {}};
  tensor.data.resize(count * dtype_bytes(dtype));
  convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), dtype,
                   tensor.data.data(), count);
  return tensor;
}

float tensor_value(const TensorData& tensor, size_t index) {
  const DType dtype = dtype_of_stored(tensor.dtype);
  float value = 0;
  convert_elements(dtype, tensor.data.data() + index * dtype_bytes(dtype), DType::kF32,
                   reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

Bytes safetensors_raw(std::string_view header, const Bytes& data) {
  Bytes bytes;
  append_little(bytes, header.size(), 8);
  append(bytes, header);
  bytes.insert(bytes.end(), data.begin(), data.end());
  return bytes;
}

Bytes safetensors_file(const std::vector<TensorData>& tensors) {
  json header = json::object();
  Bytes data;
  for (const TensorData& tensor : tensors) {
    const size_t begin = data.size();
    data.insert(data.end(), tensor.data.begin(), tensor.data.end());
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  header["__metadata__"] = {{"format", "pt"}};
  std::string text = header.dump();
  while (text.size() % 8 != 0) text += ' ';
  return safetensors_raw(text, data);
}

std::vector<TensorData> opt_tensors(const ModelShape& s, DType dtype) {
  std::vector<TensorData> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    tensors.push_back(make_tensor(name, std::move(shape), dtype));
  };
  const auto norm = [&](const std::string& name) {
    if (!s.norm_affine) return;
    add(name + ".weight", {s.hidden});
    add(name + ".bias", {s.hidden});
  };
  const auto linear = [&](const std::string& name, int64_t rows, int64_t columns) {
    add(name + ".weight", {rows, columns});
    if (s.mlp_bias) add(name + ".bias", {rows});
  };
  add("model.decoder.embed_tokens.weight", {s.vocabulary, s.embedding});
  add("model.decoder.embed_positions.weight", {s.positions + 2, s.hidden});
  if (s.embedding != s.hidden) {
    add("model.decoder.project_out.weight", {s.embedding, s.hidden});
    add("model.decoder.project_in.weight", {s.hidden, s.embedding});
  }
  if (s.final_norm) norm("model.decoder.final_layer_norm");
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string layer = "model.decoder.layers." + std::to_string(i) + ".";
    for (const char* name : {"k_proj", "v_proj", "q_proj", "out_proj"}) {
      linear(layer + "self_attn." + name, s.hidden, s.hidden);
    }
    norm(layer + "self_attn_layer_norm");
    linear(layer + "fc1", s.mlp, s.hidden);
    linear(layer + "fc2", s.hidden, s.mlp);
    norm(layer + "final_layer_norm");
  }
  if (!s.tied_head) add("lm_head.weight", {s.vocabulary, s.embedding});
  return tensors;
}

std::string opt_config(const ModelShape& s) {
  const char* activation = s.activation == Activation::kRelu   ? "relu"
                           : s.activation == Activation::kGelu ? "gelu"
                                                               : "gelu_new";
  const bool pre = s.norm_place == NormPlace::kPre;
  json config = {{"model_type", "opt"},
                 {"architectures", {"OPTForCausalLM"}},
                 {"num_hidden_layers", s.layers},
                 {"hidden_size", s.hidden},
                 {"word_embed_proj_dim", s.embedding},
                 {"num_attention_heads", s.heads},
                 {"ffn_dim", s.mlp},
                 {"vocab_size", s.vocabulary},
                 {"max_position_embeddings", s.positions},
                 {"do_layer_norm_before", pre},
                 {"_remove_final_layer_norm", pre && !s.final_norm},
                 {"layer_norm_elementwise_affine", s.norm_affine},
                 {"enable_bias", s.mlp_bias},
                 {"activation_function", activation},
                 {"tie_word_embeddings", s.tied_head},
                 {"bos_token_id", s.bos_token},
                 {"pad_token_id", s.pad_token},
                 {"eos_token_id", s.eos_tokens}};
  return config.dump(2);
}

ModelShape checkpoint_shape() {
  ModelShape shape = test::make_shape({.heads = 4, .positions = 40});
  shape.position_offset = 2;
  shape.bos_token = 2;
  shape.pad_token = 1;
  shape.eos_tokens = {2};
  return shape;
}

}  // namespace spillway
