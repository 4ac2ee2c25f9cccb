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
constexpr size_t kFrequenciesMax = 1024;  // Frequencies, and layers

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

std::vector<float> read_numbers(JsonReader& reader, const char* key) {
  std::vector<float> numbers;
  if (!reader.has(key)) return numbers;
  for (const json& number : reader.array(key, kFrequenciesMax)) {
    if (!number.is_number()) {
      reader.fail(std::string(key) + " must be numbers");
      return {};
    }
    numbers.push_back(number.get<float>());
  }
  return numbers;
}

json json_of_rotary(const Rotary& rotary) {
  json object = {{"dims", rotary.dims},
                 {"interleaved", rotary.interleaved},
                 {"scale", rotary.scale},
                 {"theta", rotary.theta},
                 {"frequencies", rotary.frequencies}};
  if (rotary.switch_length > 0) object["switch_length"] = rotary.switch_length;
  if (rotary.dynamic_factor > 0) object["dynamic_factor"] = rotary.dynamic_factor;
  if (!rotary.long_frequencies.empty()) object["long_frequencies"] = rotary.long_frequencies;
  return object;
}

Result<Rotary> rotary_of_json(const json& object) {
  JsonReader reader(object, "shape.rotary");
  Rotary rotary;
  rotary.dims = reader.integer("dims", 0, kAny);
  rotary.interleaved = reader.boolean_or("interleaved", false);
  rotary.scale = static_cast<float>(reader.number_or("scale", 1));
  rotary.theta = static_cast<float>(reader.number_or("theta", 10000));
  rotary.frequencies = read_numbers(reader, "frequencies");
  rotary.long_frequencies = read_numbers(reader, "long_frequencies");
  rotary.dynamic_factor = static_cast<float>(reader.number_or("dynamic_factor", 0));
  rotary.switch_length = reader.integer_or("switch_length", 0, kAny, 0);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return rotary;
}

// Members that say what a family before Llama does not have are left out of its shape, whose JSON
// is that of the program's earlier versions.
void add_newer(json& object, const ModelShape& shape) {
  const ModelShape plain;
  if (shape.position == PositionKind::kRotary) object["rotary"] = json_of_rotary(shape.rotary);
  if (!shape.rotary_layers.empty()) object["rotary_layers"] = shape.rotary_layers;
  if (shape.sliding_window > 0) object["sliding_window"] = shape.sliding_window;
  if (!shape.sliding_layers.empty()) object["sliding_layers"] = shape.sliding_layers;
  if (shape.head_norm) object["head_norm"] = true;
  if (shape.parallel) object["parallel"] = true;
  const auto scale = [&](const char* key, float value, float otherwise) {
    if (value != otherwise) object[key] = value;
  };
  scale("embedding_scale", shape.embedding_scale, plain.embedding_scale);
  scale("attention_scale", shape.attention_scale, plain.attention_scale);
  scale("residual_scale", shape.residual_scale, plain.residual_scale);
  scale("logits_scale", shape.logits_scale, plain.logits_scale);
  if (shape.qkv_bias == shape.mlp_bias && shape.attention_out_bias == shape.mlp_bias) return;
  object["qkv_bias"] = shape.qkv_bias;
  object["attention_out_bias"] = shape.attention_out_bias;
}

Status read_newer(JsonReader& reader, const json& object, ModelShape& shape) {
  if (shape.position == PositionKind::kRotary) {
    const auto found = object.find("rotary");
    if (found == object.end() || !found->is_object()) {
      return invalid_argument("shape: rotary positions without the object 'rotary'");
    }
    SPILLWAY_ASSIGN_OR_RETURN(shape.rotary, rotary_of_json(*found));
  }
  for (const float rotates : read_numbers(reader, "rotary_layers")) {
    shape.rotary_layers.push_back(rotates != 0 ? 1 : 0);
  }
  shape.sliding_window = reader.integer_or("sliding_window", 0, kAny, 0);
  for (const float slides : read_numbers(reader, "sliding_layers")) {
    shape.sliding_layers.push_back(slides != 0 ? 1 : 0);
  }
  shape.head_norm = reader.boolean_or("head_norm", false);
  shape.parallel = reader.boolean_or("parallel", false);
  shape.embedding_scale = static_cast<float>(reader.number_or("embedding_scale", 1));
  shape.attention_scale = static_cast<float>(reader.number_or("attention_scale", 0));
  shape.residual_scale = static_cast<float>(reader.number_or("residual_scale", 1));
  shape.logits_scale = static_cast<float>(reader.number_or("logits_scale", 1));
  shape.mlp_bias = reader.boolean_or("bias", true);
  shape.qkv_bias = reader.boolean_or("qkv_bias", shape.mlp_bias);
  shape.attention_out_bias = reader.boolean_or("attention_out_bias", shape.mlp_bias);
  return {};
}

}  // namespace

json json_of_shape(const ModelShape& shape) {
  json object = {{"family", shape.family},
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
                 {"bias", shape.mlp_bias},
                 {"tied_head", shape.tied_head},
                 {"bos_token", shape.bos_token},
                 {"pad_token", shape.pad_token},
                 {"eos_tokens", shape.eos_tokens}};
  add_newer(object, shape);
  return object;
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
  SPILLWAY_RETURN_IF_ERROR(read_newer(reader, object, shape));
  shape.tied_head = reader.boolean_or("tied_head", true);
  read_tokens(reader, shape);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  if (const Status status = validate(shape); !status.ok()) return status.at("shape");
  return shape;
}

}  // namespace spillway
