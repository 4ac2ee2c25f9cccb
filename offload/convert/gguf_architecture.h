// The model architectures of GGUF files that are read, and the names that Hugging Face's
// checkpoints of the same models give to their tensors. Constant data, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "offload/convert/gguf_model.h"

namespace spillway {

struct GgufArchitecture {
  std::string_view name;        // general.architecture
  std::string_view model_type;  // Of config.json.
  std::string_view class_name;  // Of its "architectures".

  // llama.cpp's converter reorders the rows of q and k (and their biases) of these, so that the two
  // numbers that a rotation turns are neighbours. They stay so: q times k is the same.
  bool interleaved = false;

  bool fused = false;  // q, k, v are one tensor, gate and up another (Phi-3).

  // GPT-NeoX: its own names; q, k, v are one tensor whose rows Hugging Face has head by head, the
  // file as all of q, all of k, all of v.
  bool neox = false;
};

// The architecture of general.architecture; kInvalidArgument names one that is not read, and those
// that are.
Result<const GgufArchitecture*> gguf_architecture_of(const GgufModel& model);

// "model.layers.3.self_attn.q_proj.weight" for "blk.3.attn_q.weight"; empty for a tensor that no
// weight is made of (factors of rotary positions, which config.json carries). A name that is not
// known stays as it is and is reported when weights are matched.
std::string hf_tensor_name(const GgufArchitecture& architecture, std::string_view name);

}  // namespace spillway
