// An opened GGUF model: the metadata of its first file and the tensors of all its files. A model
// may be split: NAME-00001-of-00003.gguf and so on, of which the user names the first. Thread rule:
// const after open, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/byte_source.h"
#include "offload/convert/gguf_header.h"
#include "offload/convert/gguf_metadata.h"

namespace spillway {

// Whether a user's MODEL is to be read as GGUF: its name ends in ".gguf".
bool is_gguf_path(std::string_view path);

// The file's name without folder, ".gguf" and the number of a split file.
std::string gguf_model_name(std::string_view path);

struct GgufModelTensor {
  GgufTensor stored;
  uint32_t file = 0;
};

class GgufModel {
 public:
  // Reads the headers of the file and of the files it was split into, which lie beside it. Errors
  // name the file. kNotFound: there is no such file. Blocks.
  static Result<GgufModel> open(const std::string& path);

  // A model of one file.
  static Result<GgufModel> read(std::unique_ptr<ByteSource> source);

  const std::string& name() const {
    return files_.front()->name();
  }  // The first file's, for errors
  const GgufMetadata& metadata() const { return metadata_; }
  const std::vector<GgufModelTensor>& tensors() const { return tensors_; }
  const GgufModelTensor* find(std::string_view tensor) const;  // Null: there is none.
  const std::vector<std::unique_ptr<ByteSource>>& files() const { return files_; }
  uint64_t header_bytes(uint32_t file) const { return header_bytes_[file]; }

  // All numbers of a small tensor. kInvalidArgument: it has more than `count_max`. Blocks.
  Result<std::vector<float>> read_numbers(const GgufModelTensor& tensor, uint64_t count_max) const;

  // Gives the files away; tensors keep their places in them.
  std::vector<std::unique_ptr<ByteSource>> take_files() { return std::move(files_); }

 private:
  GgufModel() = default;
  void add(std::unique_ptr<ByteSource> source, GgufHeader& header);

  std::vector<std::unique_ptr<ByteSource>> files_;
  std::vector<uint64_t> header_bytes_;
  GgufMetadata metadata_;
  std::vector<GgufModelTensor> tensors_;
};

}  // namespace spillway
