// Converts a checkpoint, a directory or a GGUF file, to a packed model file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/format.h"
#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"
#include "offload/convert/slab_packer.h"
#include "offload/convert/smoothing.h"

namespace spillway {

struct ConvertOptions {
  std::optional<Format> format;  // For matrices and tables; none: the checkpoint's own
  bool bf16_for_f16 = false;     // Without `format`: packs an f16 checkpoint as bf16
  bool verify_crc = true;        // For .bin records; off only for files without checksums
  bool lenient_header = false;   // safetensors_reader.h
  // The layout of matrices in a format, as the machine's kernels want it (Device::matrix_layout).
  // None: kPanels16.
  std::function<MatrixLayout(Format)> layout;
  unsigned threads = 0;  // 0: two more than cores, so that some wait for the disk.

  // What goes into the products of each layer, of a text that the model has read: the weights are
  // smoothed by it before they are packed (smoothing.h). Empty: they are not. REQUIRES: `format` is
  // given and keeps_no_blocks().
  std::vector<InputMaxima> calibration;

  // Called once, when all but the weights is checked and before anything is written, with a line
  // for people: what is converted to which file, its bytes and format, and the room there. May be
  // empty.
  std::function<void(const std::string&)> announce;

  // The checkpoint's absolute path, to be kept in the packed file (ModelFileTable::origin). Empty
  // where the file may be given to others, whom it does not concern.
  std::string origin;

  // Ends the error of a disk that is too small: what to do about it.
  std::string room_advice = "free some, or choose another place";

  // Called on the calling thread about ten times a second with bytes read so far and total bytes;
  // false stops the work (kCancelled).
  std::function<bool(uint64_t, uint64_t)> progress;
};

struct ConvertReport {
  ModelShape shape;
  Format format = Format::kF32;
  uint64_t weight_bytes = 0;
  QuantError quantization;           // Over all weights, if the format is quantised
  std::vector<TensorDamage> damage;  // Empty for a healthy checkpoint.
  std::vector<std::string> notes;    // The checkpoint's (checkpoint.h), and what became of blocks
};

// Reads, checks, converts and packs on several threads; memory stays below 80 MiB a thread for
// every real model. `output` appears whole or not at all; an older file survives a failure.
// kInvalidArgument and kCorruption: the checkpoint is invalid. kCapacity: the disk has too little
// room, which is found before anything is written. Blocks.
Result<ConvertReport> convert_checkpoint(const std::string& path, const std::string& output,
                                         const ConvertOptions& options);

// "decoder.layers.3.fc1.weight: 2 NaN, 1 infinite; 5 too large for f16".
std::string damage_text(const TensorDamage& damage, Format format);

}  // namespace spillway
