// The report of `spillway inspect` on a model, and its text and JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/format.h"
#include "kernels/base/model_shape.h"
#include "kernels/base/quantized.h"
#include "kernels/base/status.h"
#include "offload/convert/slab_packer.h"

namespace spillway {

struct InspectReport {
  std::string model;   // As the user named it.
  std::string kind;    // "packed", "checkpoint" or "shape".
  std::string source;  // Packed files: name and fingerprint of the checkpoint.
  ModelShape shape;
  Format format = Format::kF32;  // The packed file's, existing or to be made.
  std::string formats;           // All of them: "q4_1 and q8_1"
  int64_t parameters = 0;
  int64_t tensors = 0;

  // Packed bytes, padding included: before the layers, one layer, after the layers.
  uint64_t embedding_bytes = 0;
  uint64_t layer_bytes = 0;
  uint64_t head_bytes = 0;
  uint64_t total_bytes = 0;

  std::vector<std::pair<std::string, uint64_t>> tokenizer_files;  // Name, bytes.
  std::string chat_template;         // Which one chats are rendered with, or why there are none
  bool weights_read = false;         // All weights were read for this report.
  bool verified = false;             // Against the checksums that the files carry.
  std::vector<TensorDamage> damage;  // Tensors with NaN or infinity.

  // Packed q4 files: all weights together, and the tensor with the largest relative error.
  QuantError quantization;
  std::string quantization_worst;
  double quantization_worst_rms = 0;
  bool hadamard = false;  // Some matrices are multiplied by Hadamard matrices
  std::vector<std::string> notes;
};

struct InspectOptions {
  bool verify = false;
  bool lenient_header = false;
  std::function<bool(uint64_t, uint64_t)> progress;  // As ConvertOptions::progress.
};

// `model`: a .spill file, a model directory, or the name of a shape. Reads the weights of a
// directory, and of a packed file with `verify`. Blocks.
Result<InspectReport> inspect_model(const std::string& model, const InspectOptions& options);

std::string text_of(const InspectReport& report);
std::string json_of(const InspectReport& report);

}  // namespace spillway
