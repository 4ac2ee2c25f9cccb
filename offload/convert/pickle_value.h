// The values of the pickle machine. A Value is a small handle, copied freely; tuples, dicts,
// storages and tensors lie in pools that only grow, so that nothing is copied deeply and nothing is
// freed recursively.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "offload/convert/stored_tensor.h"

namespace spillway::pickle {

enum class Kind : uint8_t {
  kUnset,  // A memo slot that was never set
  kNone,
  kBool,
  kInt,
  kString,
  kTuple,
  kDict,
  kGlobal,
  kStorage,
  kTensor,
};

enum class Global : uint8_t {
  kOrderedDict,
  kRebuildTensor,     // torch._utils._rebuild_tensor_v2
  kRebuildParameter,  // torch._utils._rebuild_parameter
  kStorageType,       // torch.FloatStorage and so on
};

struct Value {
  Kind kind = Kind::kUnset;
  Global global = Global::kOrderedDict;  // kGlobal
  uint32_t size = 0;                     // Bytes of a kString, items of a kTuple.
  // kBool, kInt: the number. kString: its offset in the pickle. kGlobal of kStorageType: index of
  // the format. Else: index into the pool.
  int64_t number = 0;
};

struct Dict {
  bool ordered = false;  // An OrderedDict: BUILD may attach metadata to it
  std::vector<std::pair<Value, Value>> items;
};

struct Tensor {
  uint32_t storage = 0;
  uint64_t offset = 0;
  std::vector<int64_t> shape;
};

}  // namespace spillway::pickle
