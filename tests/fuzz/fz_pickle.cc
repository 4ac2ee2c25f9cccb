// The pickle of a state dict: any bytes are read or refused; a tensor lies in its storage.
#include <cstdint>
#include <set>

#include "offload/convert/pickle_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const auto dict = read_state_dict({reinterpret_cast<const std::byte*>(data), size});
  if (!dict.ok()) return 0;
  std::set<std::string> names;
  for (const PickledTensor& tensor : dict.value().tensors) {
    SPILLWAY_CHECK(names.insert(tensor.name).second);
    const PickledStorage& storage = dict.value().storages.at(tensor.storage);
    const auto bytes = stored_bytes(*storage.format, tensor.shape);
    SPILLWAY_CHECK(bytes.has_value() && tensor.offset <= storage.elements);
    SPILLWAY_CHECK(*bytes / (storage.format->bits / 8) <= storage.elements - tensor.offset);
  }
  return 0;
}
