// A model family: how a checkpoint of one architecture becomes a ModelShape and its weights. A new
// architecture is one more family_*.cc and one line in family.cc. Constant data, any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"
#include "kernels/base/weights.h"

namespace spillway {

// One checkpoint tensor that goes into a weight. The parts of a weight lie below each other: they
// have equal columns, and their rows add up. A vector is a part of shape [elements].
struct WeightPart {
  std::string tensor;          // Canonical name.
  std::vector<int64_t> shape;  // What the checkpoint must say.
};

struct Family {
  std::string_view model_type;  // As config.json has it.

  // The shape without its name, from a parsed config.json; eos_tokens are those of a config that
  // does not speak of them. Errors name the field.
  Result<ModelShape> (*read_shape)(const nlohmann::json& config);

  // The parts of one of weight_specs(shape), in order.
  std::vector<WeightPart> (*parts)(const ModelShape& shape, const WeightSpec& spec);

  // The one name for a tensor that checkpoints spell in several ways.
  std::string (*canonical_name)(std::string_view name);

  // A tensor that real checkpoints carry and no weight uses.
  bool (*is_leftover)(std::string_view canonical_name);

  // The head's own tensor. A checkpoint with tied weights may leave it out or repeat the embedding.
  std::string_view head_name;
};

extern const Family kFamilyOpt;  // OPT, OPT-IML, Galactica: family_opt.cc

// Null: no such family.
const Family* family_of(std::string_view model_type);

}  // namespace spillway
