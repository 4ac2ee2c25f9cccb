// Writes small checkpoints byte by byte, so that tests can build good ones and every kind of bad
// one without Python. torch_writer.h does the same for .bin files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/model_shape.h"

namespace spillway {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::string_view text);
void append(Bytes& bytes, std::string_view text);
void append_little(Bytes& bytes, uint64_t value, size_t count);  // The `count` low bytes.

void write_file(const std::string& path, const Bytes& bytes);  // Overwrites.
void write_file(const std::string& path, std::string_view text);

// A tensor to be written: `data` is dense and row-major.
struct TensorData {
  std::string name;
  std::string dtype = "F32";  // As safetensors spells it.
  std::vector<int64_t> shape;
  Bytes data;
};

// Numbers -1..1 that depend on the name alone, in `dtype`.
TensorData make_tensor(std::string name, std::vector<int64_t> shape, DType dtype = DType::kF32);

// The number at `index`, as float.
float tensor_value(const TensorData& tensor, size_t index);

// u64 length, `header`, `data`: nothing is checked.
Bytes safetensors_raw(std::string_view header, const Bytes& data);

// A well-formed file of these tensors.
Bytes safetensors_file(const std::vector<TensorData>& tensors);

// The tensors that transformers would save for an OPT of this shape, "model." in front; the head
// only when it is not tied.
std::vector<TensorData> opt_tensors(const ModelShape& shape, DType dtype = DType::kF32);

// A config.json that describes it.
std::string opt_config(const ModelShape& shape);

// A small OPT: 2 layers, hidden 32, 4 heads, mlp 64, vocabulary 100, 40 positions.
ModelShape checkpoint_shape();

}  // namespace spillway
