// Reads a PyTorch .bin file as written by torch.save (since 1.6): a ZIP of raw storages with a
// pickle that says which tensors lie in them. Combines zip_reader and pickle_reader and checks each
// against the other. Pure function of the source, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/byte_source.h"
#include "offload/convert/stored_tensor.h"

namespace spillway {

// A storage's bytes in the file, with their CRC32, which the reader of the bytes verifies.
struct TorchRecord {
  std::string name;  // "data/0"
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t crc = 0;
};

struct TorchFile {
  std::vector<StoredTensor> tensors;  // In the order of the pickle; `record` indexes `records`.
  std::vector<TorchRecord> records;
};

// Errors name the file, the tensor or record, and the reason. Reads the ZIP directory and the small
// records, which are verified, but no storage. Blocks.
Result<TorchFile> read_torch(const ByteSource& source);

}  // namespace spillway
