// A model family: how a checkpoint of one architecture becomes a ModelShape and its weights. A new
// architecture is one more family_*.cc and one line in family.cc. Constant data, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
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
  std::vector<int64_t> shape;  // The shape the checkpoint must have
};

// The checkpoint tensors of a weight: one, or several stacked by rows; unused names are empty. A
// "*" is the layer's number.
struct TensorNames {
  WeightRole role;
  std::array<std::string_view, 3> names;
};

struct Family {
  std::string_view model_type;  // As config.json has it.

  // The shape without its name, from a parsed config.json; eos_tokens get the family's default if
  // the config has none. Errors name the field.
  Result<ModelShape> (*read_shape)(const nlohmann::json& config);

  // Canonical tensor names for every role that its shapes have. The head's name is for untied
  // weights; a checkpoint with tied weights may leave it out or repeat the embedding.
  std::span<const TensorNames> tensors;

  // The one name for a tensor that checkpoints spell in several ways.
  std::string (*canonical_name)(std::string_view name);

  // Whether real checkpoints carry this tensor though no weight uses it.
  bool (*is_leftover)(std::string_view canonical_name);
};

// The tensor of a role outside the layers that is one tensor. REQUIRES: the family has it.
std::string tensor_of(const Family& family, WeightRole role);

// The parts of one of weight_specs(shape), in order; those of a tied head are the embedding's.
std::vector<WeightPart> parts_of(const Family& family, const ModelShape& shape,
                                 const WeightSpec& spec);

extern const Family kFamilyOpt;  // OPT, OPT-IML, Galactica: family_opt.cc

// The family of a config's model_type; null: unknown.
const Family* family_of(std::string_view model_type);

}  // namespace spillway
