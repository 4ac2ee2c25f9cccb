#include "offload/model_file/model_shape_json.h"

#include <nlohmann/json.hpp>
#include <span>

#include "kernels/base/json_reader.h"
#include "kernels/base/quote.h"

namespace spillway {

using nlohmann::json;

namespace {

constexpr std::string_view kNorms[] = {"layer_norm", "rms_norm"};
constexpr std::string_view kPlaces[] = {"pre", "post"};
constexpr std::string_view kPositions[] = {"learned", "rotary"};
constexpr std::string_view kMlps[] = {"plain", "gated"};
constexpr Activation kActivations[] = {Activation::kNone, Activation::kRelu, Activation::kGelu,
                                       Activation::kGeluTanh, Activation::kSilu};
constexpr int64_t kAny = int64_t{1} << 40;  // validate() checks the real bounds
constexpr size_t kEndTokensMax = 1024;

template <class Enum>
std::string_view name_of(std::span<const std::string_view> names, Enum value) {
  return names[static_cast<size_t>(value)];
}

template <class Enum>
Enum read_enum(JsonReader& reader, const char* key, std::span<const std::string_view> names) {
  const std::string text = reader.string(key, 32);
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  reader.fail(std::string(key) + " " + in_quotes(text) + " is unknown");
  return Enum{};
}

Activation read_activation(JsonReader& reader) {
  const std::string text = reader.string("activation", 32);
  for (const Activation activation : kActivations) {
    if (activation_name(activation) == text) return activation;
  }
  reader.fail("activation " + in_quotes(text) + " is unknown");
  return Activation::kNone;
}

void read_sizes(JsonReader& reader, ModelShape& shape) {
  shape.layers = reader.integer("layers", 1, kAny);
  shape.hidden = reader.integer("hidden", 1, kAny);
  shape.embedding = reader.integer("embedding", 1, kAny);
  shape.heads = reader.integer("heads", 1, kAny);
  shape.kv_heads = reader.integer("kv_heads", 1, kAny);
  shape.head_size = reader.integer("head_size", 1, kAny);
  shape.mlp = reader.integer("mlp", 1, kAny);
  shape.vocabulary = reader.integer("vocabulary", 1, kAny);
  shape.positions = reader.integer("positions", 1, kAny);
  shape.position_offset = reader.integer("position_offset", 0, kAny);
}

void read_tokens(JsonReader& reader, ModelShape& shape) {
  shape.bos_token = static_cast<int32_t>(reader.integer("bos_token", -1, INT32_MAX));
  shape.pad_token = static_cast<int32_t>(reader.integer("pad_token", -1, INT32_MAX));
  for (const json& token : reader.array("eos_tokens", kEndTokensMax)) {
    const bool good = token.is_number_unsigned() && token.get<uint64_t>() <= INT32_MAX;
    if (!good) return reader.fail("eos_tokens must be token ids");
    shape.eos_tokens.push_back(static_cast<int32_t>(token.get<uint64_t>()));
  }
}

}  // namespace

json json_of_shape(const ModelShape& shape) {
  return {{"family", shape.family},
          {"name", shape.name},
          {"layers", shape.layers},
          {"hidden", shape.hidden},
          {"embedding", shape.embedding},
          {"heads", shape.heads},
          {"kv_heads", shape.kv_heads},
          {"head_size", shape.head_size},
          {"mlp", shape.mlp},
          {"vocabulary", shape.vocabulary},
          {"positions", shape.positions},
          {"norm", name_of(kNorms, shape.norm)},
          {"norm_place", name_of(kPlaces, shape.norm_place)},
          {"norm_affine", shape.norm_affine},
          {"final_norm", shape.final_norm},
          {"norm_epsilon", shape.norm_epsilon},
          {"position", name_of(kPositions, shape.position)},
          {"position_offset", shape.position_offset},
          {"mlp_kind", name_of(kMlps, shape.mlp_kind)},
          {"activation", activation_name(shape.activation)},
          {"bias", shape.bias},
          {"tied_head", shape.tied_head},
          {"bos_token", shape.bos_token},
          {"pad_token", shape.pad_token},
          {"eos_tokens", shape.eos_tokens}};
}

Result<ModelShape> shape_of_json(const json& object) {
  JsonReader reader(object, "shape");
  ModelShape shape;
  shape.family = reader.string("family", 64);
  shape.name = reader.string("name", 1024);
  read_sizes(reader, shape);
  shape.norm = read_enum<NormKind>(reader, "norm", kNorms);
  shape.norm_place = read_enum<NormPlace>(reader, "norm_place", kPlaces);
  shape.norm_affine = reader.boolean_or("norm_affine", true);
  shape.final_norm = reader.boolean_or("final_norm", true);
  shape.norm_epsilon = static_cast<float>(reader.number_or("norm_epsilon", 1e-5));
  shape.position = read_enum<PositionKind>(reader, "position", kPositions);
  shape.mlp_kind = read_enum<MlpKind>(reader, "mlp_kind", kMlps);
  shape.activation = read_activation(reader);
  shape.bias = reader.boolean_or("bias", true);
  shape.tied_head = reader.boolean_or("tied_head", true);
  read_tokens(reader, shape);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  if (const Status status = validate(shape); !status.ok()) return status.at("shape");
  return shape;
}

}  // namespace spillway
