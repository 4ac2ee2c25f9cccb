// Reads the header of a .safetensors file, strictly: u64 length, JSON, data (reference
// implementation's rules and ours: no unknown field, no duplicate key, whole numbers only, the
// tensors' ranges tile the data). Pure function of the source, any thread.
#pragma once

#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/byte_source.h"
#include "offload/convert/stored_tensor.h"

namespace spillway {

struct SafetensorsOptions {
  // Accept white space before the header's '{'. The format's text forbids it, its reference reader
  // and some writers do not.
  bool lenient_header = false;
};

// The tensors in the order of their data. kInvalidArgument and kCorruption name the file, the
// tensor and the reason. Reads the header only: at most 100 MB. Blocks.
Result<std::vector<StoredTensor>> read_safetensors(const ByteSource& source,
                                                   const SafetensorsOptions& options = {});

}  // namespace spillway
