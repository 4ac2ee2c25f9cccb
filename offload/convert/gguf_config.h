// The metadata of a GGUF file as the config.json that transformers 4.57 would write for the same
// model, so that model families have one input. Beyond transformers' members:
//
//   "rope_interleaved": true          rows of q and k are in the order of rotated pairs
//   "rope_frequency_factors": [...]   divisors of the head_dim / 2 rotary frequencies (the scaling
//                                     of Llama 3.x, which GGUF stores as a tensor)
//
// Pure function, any thread.
#pragma once

#include <string>

#include "kernels/base/status.h"
#include "offload/convert/gguf_model.h"

namespace spillway {

// kInvalidArgument names the key: of a wrong type, out of range, or one that changes the arithmetic
// and is not known. Reads small tensors (factors of rotary positions): blocks.
Result<std::string> gguf_config_json(const GgufModel& model);

}  // namespace spillway
