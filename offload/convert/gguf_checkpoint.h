// The tensors of a GGUF model as a checkpoint holds them: with Hugging Face's names, quantised ones
// as float32 numbers that are computed when they are read. Pure function, any thread.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/checkpoint.h"
#include "offload/convert/gguf_model.h"

namespace spillway {

struct GgufTensors {
  std::vector<CheckpointTensor> tensors;  // `file` counts the model's files.
  std::string block_formats;              // As Checkpoint::block_formats().
};

// kInvalidArgument: an architecture that is not read.
Result<GgufTensors> tensors_of(const GgufModel& model);

}  // namespace spillway
