// A GGUF file: any bytes are read or refused; tensors lie in the file and never overlap, and what
// its metadata become is JSON.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "offload/convert/gguf_checkpoint.h"
#include "offload/convert/gguf_config.h"
#include "offload/convert/gguf_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const auto model = GgufModel::read(memory_source("fuzz", {bytes, bytes + size}));
  if (!model.ok()) return 0;
  uint64_t end = model->header_bytes(0);
  for (const GgufModelTensor& tensor : model->tensors()) {
    SPILLWAY_CHECK(tensor.stored.offset >= end && tensor.stored.offset <= size);
    SPILLWAY_CHECK(tensor.stored.bytes <= size - tensor.stored.offset);
    end = tensor.stored.offset + tensor.stored.bytes;
    SPILLWAY_CHECK(model->read_numbers(tensor, 64 * size).ok());
  }
  if (const auto config = gguf_config_json(model.value()); config.ok()) {
    SPILLWAY_CHECK(nlohmann::json::accept(config.value()));
  }
  if (const auto files = gguf_tokenizer_files(model->metadata(), "fuzz"); files.ok()) {
    for (const auto& [name, text] : files.value()) SPILLWAY_CHECK(nlohmann::json::accept(text));
  }
  if (const auto tensors = tensors_of(model.value()); tensors.ok()) {
    for (const CheckpointTensor& tensor : tensors->tensors) {
      SPILLWAY_CHECK(stored_bytes(*tensor.stored.format, tensor.stored.shape) ==
                     tensor.stored.bytes);
    }
  }
  return 0;
}
