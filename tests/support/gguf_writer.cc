#include "tests/support/gguf_writer.h"

#include <algorithm>
#include <bit>

namespace spillway {

namespace {

size_t bytes_of_type(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    default:
      return 8;
  }
}

void append_bytes(Bytes& target, const Bytes& bytes) {
  target.insert(target.end(), bytes.begin(), bytes.end());
}

void pad(Bytes& bytes, uint64_t alignment) {
  bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
}

}  // namespace

Bytes gguf_string(std::string_view text) {
  Bytes bytes;
  append_little(bytes, text.size(), 8);
  append(bytes, text);
  return bytes;
}

Bytes gguf_list(GgufType type, uint64_t count, const Bytes& elements) {
  Bytes bytes;
  append_little(bytes, static_cast<uint32_t>(type), 4);
  append_little(bytes, count, 8);
  append_bytes(bytes, elements);
  return bytes;
}

GgufWriter GgufWriter::model(const std::string& architecture) {
  GgufWriter writer;
  writer.add("general.architecture", std::string_view(architecture));
  writer.add(architecture + ".block_count", int64_t{2});
  writer.add(architecture + ".context_length", int64_t{128});
  writer.add(architecture + ".embedding_length", int64_t{64});
  writer.add(architecture + ".feed_forward_length", int64_t{96});
  writer.add(architecture + ".attention.head_count", int64_t{4});
  writer.add(architecture + ".attention.head_count_kv", int64_t{2});
  writer.add(architecture + ".attention.layer_norm_rms_epsilon", 1e-6F);
  return writer;
}

void GgufWriter::add_llama(
    const std::function<void(const std::string& name, int64_t rows, int64_t columns)>& matrix,
    int64_t width) {
  const int64_t mlp = width == 64 ? 96 : width;
  for (const auto& [key, value] :
       {std::pair("embedding_length", width), std::pair("feed_forward_length", mlp)}) {
    remove("llama." + std::string(key));
    add("llama." + std::string(key), value);
  }
  std::vector<std::string> tokens;
  for (char c = 'A'; tokens.size() < 40; ++c) tokens.emplace_back(1, c);
  add("tokenizer.ggml.model", std::string_view("gpt2"));
  add("tokenizer.ggml.tokens", tokens);
  add("tokenizer.ggml.merges", std::vector<std::string>{});
  const auto norm = [&](const std::string& name) {
    add_tensor(name + ".weight", {width}, std::vector<float>(static_cast<size_t>(width), 1));
  };
  matrix("token_embd.weight", 40, width);
  norm("output_norm");
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    norm(layer + "attn_norm");
    norm(layer + "ffn_norm");
    matrix(layer + "attn_q.weight", width, width);
    matrix(layer + "attn_k.weight", width / 2, width);
    matrix(layer + "attn_v.weight", width / 2, width);
    matrix(layer + "attn_output.weight", width, width);
    matrix(layer + "ffn_gate.weight", mlp, width);
    matrix(layer + "ffn_up.weight", mlp, width);
    matrix(layer + "ffn_down.weight", width, mlp);
  }
}

void GgufWriter::add(const std::string& key, int64_t value, GgufType type) {
  Bytes bytes;
  append_little(bytes, static_cast<uint64_t>(value), bytes_of_type(type));
  add_raw(key, static_cast<uint32_t>(type), bytes);
}

void GgufWriter::add(const std::string& key, float value) {
  add(key, int64_t{std::bit_cast<uint32_t>(value)}, GgufType::kF32);
}

void GgufWriter::add(const std::string& key, bool value) {
  add(key, int64_t{value ? 1 : 0}, GgufType::kBool);
}

void GgufWriter::add(const std::string& key, std::string_view value) {
  add_raw(key, static_cast<uint32_t>(GgufType::kString), gguf_string(value));
}

void GgufWriter::add(const std::string& key, const std::vector<std::string>& values) {
  Bytes elements;
  for (const std::string& value : values) append_bytes(elements, gguf_string(value));
  add_raw(key, static_cast<uint32_t>(GgufType::kList),
          gguf_list(GgufType::kString, values.size(), elements));
}

void GgufWriter::add(const std::string& key, const std::vector<int32_t>& values) {
  Bytes elements;
  for (const int32_t value : values) append_little(elements, static_cast<uint32_t>(value), 4);
  add_raw(key, static_cast<uint32_t>(GgufType::kList),
          gguf_list(GgufType::kI32, values.size(), elements));
}

void GgufWriter::add(const std::string& key, const std::vector<float>& values) {
  Bytes elements;
  for (const float value : values) append_little(elements, std::bit_cast<uint32_t>(value), 4);
  add_raw(key, static_cast<uint32_t>(GgufType::kList),
          gguf_list(GgufType::kF32, values.size(), elements));
}

void GgufWriter::add_raw(const std::string& key, uint32_t type, const Bytes& value) {
  keys_.push_back({key, type, value});
}

void GgufWriter::remove(const std::string& key) {
  std::erase_if(keys_, [&](const Key& candidate) { return candidate.name == key; });
}

void GgufWriter::add_tensor(const std::string& name, uint32_t format,
                            const std::vector<int64_t>& shape, const Bytes& data) {
  pad(data_, alignment);
  tensors_.push_back({name, format, shape, data_.size()});
  append_bytes(data_, data);
}

void GgufWriter::add_tensor(const std::string& name, const std::vector<int64_t>& shape,
                            const std::vector<float>& numbers) {
  Bytes data;
  for (const float number : numbers) append_little(data, std::bit_cast<uint32_t>(number), 4);
  add_tensor(name, 0, shape, data);
}

Bytes GgufWriter::file() const {
  Bytes bytes = bytes_of("GGUF");
  append_little(bytes, version, 4);
  append_little(bytes, tensors_.size(), 8);
  append_little(bytes, keys_.size(), 8);
  for (const Key& key : keys_) {
    append_bytes(bytes, gguf_string(key.name));
    append_little(bytes, key.type, 4);
    append_bytes(bytes, key.value);
  }
  for (const Tensor& tensor : tensors_) {
    append_bytes(bytes, gguf_string(tensor.name));
    append_little(bytes, tensor.shape.size(), 4);
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
      append_little(bytes, static_cast<uint64_t>(*size), 8);
    }
    append_little(bytes, tensor.format, 4);
    append_little(bytes, tensor.offset, 8);
  }
  pad(bytes, alignment);
  append_bytes(bytes, data_);
  pad(bytes, alignment);
  return bytes;
}

}  // namespace spillway
