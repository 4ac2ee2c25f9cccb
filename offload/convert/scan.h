// Reads all of a model to check that it is sound, without converting it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/checkpoint.h"
#include "offload/convert/slab_packer.h"
#include "offload/model_file/model_file.h"

namespace spillway {

struct ScanOptions {
  bool verify = false;   // Compare the checksums that a checkpoint carries.
  unsigned threads = 0;  // 0: two more than cores.

  // As ConvertOptions::progress.
  std::function<bool(uint64_t, uint64_t)> progress;
};

// Counts NaN and infinity in every F32, BF16 or F16 tensor of the checkpoint; returns the tensors
// with any, in the checkpoint's order. Blocks.
Result<std::vector<TensorDamage>> scan_checkpoint(const Checkpoint& checkpoint,
                                                  const ScanOptions& options);

// Reads and verifies every slab of a packed file; the error names the first that does not match its
// checksum. Blocks.
Status scan_model_file(const ModelFile& file, const ScanOptions& options);

}  // namespace spillway
