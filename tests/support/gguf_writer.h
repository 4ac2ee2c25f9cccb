// Writes small GGUF files byte by byte, so that tests can build good ones and every kind of bad
// one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/checkpoint_writer.h"

namespace spillway {

// Types of metadata values, as in the file.
enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kList,
  kU64,
  kI64,
  kF64
};

class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;  // Of data; add the key general.alignment for another.

  // Of a model that has all that every architecture needs: 2 layers, hidden 64, 4 heads, mlp 96.
  static GgufWriter model(const std::string& architecture);

  void add(const std::string& key, int64_t value, GgufType type = GgufType::kU32);
  void add(const std::string& key, float value);
  void add(const std::string& key, bool value);
  void add(const std::string& key, std::string_view value);
  void add(const std::string& key, const std::vector<std::string>& values);
  void add(const std::string& key, const std::vector<int32_t>& values);
  void add(const std::string& key, const std::vector<float>& values);
  void add_raw(const std::string& key, uint32_t type, const Bytes& value);
  void remove(const std::string& key);

  // Adds the tensors of a whole Llama of model("llama")'s sizes and 40 tokens, and a tokenizer:
  // calls matrix(name, rows, columns) for each matrix, which adds it; norms are 1. `width` instead
  // of 64 for hidden size and mlp suits blocks of 256 numbers.
  void add_llama(
      const std::function<void(const std::string& name, int64_t rows, int64_t columns)>& matrix,
      int64_t width = 64);

  // `format` is ggml's number of it, `shape` row-major. Data begins behind that of the tensor
  // before.
  void add_tensor(const std::string& name, uint32_t format, const std::vector<int64_t>& shape,
                  const Bytes& data);
  void add_tensor(const std::string& name, const std::vector<int64_t>& shape,
                  const std::vector<float>& numbers);  // F32
  uint64_t& tensor_offset(size_t index) { return tensors_[index].offset; }

  Bytes file() const;

 private:
  struct Key {
    std::string name;
    uint32_t type = 0;
    Bytes value;
  };
  struct Tensor {
    std::string name;
    uint32_t format = 0;
    std::vector<int64_t> shape;
    uint64_t offset = 0;
  };

  std::vector<Key> keys_;
  std::vector<Tensor> tensors_;
  Bytes data_;
};

Bytes gguf_string(std::string_view text);  // A length and the bytes.
Bytes gguf_list(GgufType type, uint64_t count, const Bytes& elements);

}  // namespace spillway
