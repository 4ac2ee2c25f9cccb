// A Hugging Face model directory's config.json and generation_config.json as a ModelShape.
// Pure functions, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/dtype.h"
#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"

namespace spillway {

struct HfConfig {
  ModelShape shape;            // validate()d.
  std::optional<DType> dtype;  // The checkpoint's "torch_dtype" or "dtype"
};

constexpr uint64_t kConfigBytesMax = uint64_t{4} << 20;

// `generation_config` is empty when there is no such file; its eos_token_id overrides that of
// `config`. Errors name file and field. `name` becomes shape.name.
Result<HfConfig> parse_hf_config(std::string_view config, std::string_view generation_config,
                                 std::string_view name);

// Reads both files of a directory, whose name is shape.name, or the metadata of a GGUF file
// (gguf_config.h), when `path` ends in .gguf. Blocks.
Result<HfConfig> read_hf_config(const std::string& path);

}  // namespace spillway
