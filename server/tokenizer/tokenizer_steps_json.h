// Reads normalizer, pre-tokenizer and decoder of tokenizer.json from parsed JSON into checked
// steps. A step or a field that is not known is refused by its name. Errors name the step, the
// caller adds the file. Pure functions, any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "kernels/base/status.h"
#include "server/tokenizer/tokenizer_steps.h"

namespace spillway {

// JSON null is no step.
Result<std::vector<NormalizerStep>> read_normalizer(const nlohmann::json& entry);
Result<std::vector<PreTokenizerStep>> read_pre_tokenizer(const nlohmann::json& entry);

// JSON null is refused: tokens would be words with spaces between them.
Result<std::vector<DecoderStep>> read_decoder(const nlohmann::json& entry);

}  // namespace spillway
