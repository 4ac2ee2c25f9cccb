// The pickle of a PyTorch state dict, read by a machine that knows the 28 opcodes and the few names
// that state dicts need and can do nothing else: no code is looked up, let alone called. Values are
// a closed set; the result is plain data.
// Pure function, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/stored_tensor.h"

namespace spillway {

constexpr uint64_t kPickleBytesMax = uint64_t{64} << 20;

// A storage that the pickle refers to: the record data/KEY.
struct PickledStorage {
  uint32_t key = 0;
  const StoredFormat* format = nullptr;
  uint64_t elements = 0;
};

// A dense, row-major tensor inside a storage. Two tensors may share one.
struct PickledTensor {
  std::string name;
  uint32_t storage = 0;  // Index into StateDict::storages.
  uint64_t offset = 0;   // In elements.
  std::vector<int64_t> shape;
};

struct StateDict {
  std::vector<PickledStorage> storages;
  std::vector<PickledTensor> tensors;  // In the order of the dict; names are unique.
};

// kInvalidArgument names the byte, the reason and, where there is one, the remedy.
Result<StateDict> read_state_dict(std::span<const std::byte> pickle);

}  // namespace spillway
