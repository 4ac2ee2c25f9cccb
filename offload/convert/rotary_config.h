// Rotary positions in a config.json: old files have rope_theta and rope_scaling, those of
// transformers 5 rope_parameters with both. Pure functions, any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kernels/base/json_reader.h"
#include "kernels/base/model_shape.h"

namespace spillway {

// What a family's config says where the file is silent, or says elsewhere.
struct RotaryDefaults {
  double theta = 10000;
  const char* theta_key = "rope_theta";
  double partial = 1;  // Share of a head that is rotated
  const char* partial_key = "partial_rotary_factor";
};

// Sets the shape's position, rotary and positions; head_size and positions (of the config's
// max_position_embeddings) are set before. Frequencies are computed as transformers does for the
// types default, linear (Chen et al. 2023, arXiv 2306.15595), dynamic, yarn (Peng et al. 2023,
// arXiv 2309.00071), longrope (Ding et al. 2024, arXiv 2402.13753) and llama3 (Llama 3.1). The
// scalings linear, dynamic and yarn lengthen `positions` by their factor, as in vLLM. Errors are
// the reader's.
void read_rotary(JsonReader& reader, const nlohmann::json& config, const RotaryDefaults& defaults,
                 ModelShape& shape);

}  // namespace spillway
