// Reading all of a model to see whether it is sound, without making anything of it.
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

// Counts NaN and infinity in every tensor of the checkpoint that holds F32, BF16 or F16; those with
// any, in the checkpoint's order. Blocks.
Result<std::vector<TensorDamage>> scan_checkpoint(const Checkpoint& checkpoint,
                                                  const ScanOptions& options);

// Reads and verifies every slab of a packed file; the first that does not match its checksum is the
// error. Blocks.
Status scan_model_file(const ModelFile& file, const ScanOptions& options);

}  // namespace spillway
