#include "offload/convert/pickle_reader.h"

#include <unordered_set>

#include "kernels/base/quote.h"
#include "offload/convert/pickle_machine.h"

namespace spillway {

namespace {

constexpr size_t kKeysMax = 1'000'000;

}  // namespace

Result<StateDict> read_state_dict(std::span<const std::byte> bytes) {
  pickle::Machine machine(bytes);
  SPILLWAY_ASSIGN_OR_RETURN(const pickle::Value top, machine.run());
  if (top.kind != pickle::Kind::kDict) return invalid_argument("the pickle holds no dict");
  const pickle::Dict& dict = machine.dict(top);
  if (dict.items.size() > kKeysMax) return invalid_argument("more than 1,000,000 tensors");
  StateDict result;
  result.storages = machine.storages();
  std::unordered_set<std::string_view> names;
  for (const auto& [key, value] : dict.items) {
    const std::string_view name = machine.text(key);
    if (value.kind != pickle::Kind::kTensor) {
      return invalid_argument(in_quotes(name) +
                              " is no tensor; this is no state dict (a training checkpoint?)");
    }
    if (!names.insert(name).second) {
      return corruption("tensor " + in_quotes(name) + " occurs twice");
    }
    const pickle::Tensor& tensor = machine.tensor(value);
    result.tensors.push_back({std::string(name), tensor.storage, tensor.offset, tensor.shape});
  }
  return result;
}

}  // namespace spillway
