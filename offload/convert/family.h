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

// Rows of a checkpoint tensor that go into a weight. The parts of a weight lie below each other:
// they have equal columns, and their rows add up. A vector has rows of one number.
struct WeightPart {
  std::string tensor;          // Canonical name.
  std::vector<int64_t> shape;  // The tensor's shape that the checkpoint must have
  int64_t first_row = 0;
  int64_t rows = 0;
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

  // The one tensor of query, key and value weights has the rows of a head next to each other
  // (GPT-NeoX), instead of those of all query heads, all key heads, all value heads.
  bool qkv_by_head = false;
};

// The tensor of a role outside the layers that is one tensor. REQUIRES: the family has it.
std::string tensor_of(const Family& family, WeightRole role);

// The parts of one of weight_specs(shape), in order; those of a tied head are the embedding's.
std::vector<WeightPart> parts_of(const Family& family, const ModelShape& shape,
                                 const WeightSpec& spec);

extern const Family kFamilyOpt;      // OPT, OPT-IML, Galactica: family_opt.cc
extern const Family kFamilyLlama;    // Llama 1 to 3.x, SmolLM2, Yi, R1-Distill: family_llama.cc
extern const Family kFamilyMistral;  // family_mistral.cc
extern const Family kFamilyQwen2;    // Qwen2, Qwen2.5: family_qwen2.cc
extern const Family kFamilyQwen3;    // Dense: family_qwen3.cc
extern const Family kFamilySmolLm3;  // family_smollm3.cc
extern const Family kFamilyGranite;  // Granite 3, dense: family_granite.cc
extern const Family kFamilyPhi3;     // Phi-3, Phi-3.5, Phi-4: family_phi3.cc
extern const Family kFamilyGptNeoX;  // GPT-NeoX, Pythia: family_gpt_neox.cc

// The family of a config's model_type; null: unknown.
const Family* family_of(std::string_view model_type);

// All model types, for messages: "opt, llama, ...".
std::string family_names();

}  // namespace spillway
