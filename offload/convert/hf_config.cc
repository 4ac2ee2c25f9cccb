#include "offload/convert/hf_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/json_reader.h"
#include "kernels/base/quote.h"
#include "kernels/base/strict_json.h"
#include "offload/convert/family.h"
#include "offload/convert/gguf_config.h"
#include "offload/io/file.h"

namespace spillway {

using nlohmann::json;

namespace {

constexpr size_t kEndTokensMax = 64;

// Reads an id, a list of ids, or null; `otherwise` without the key.
Result<std::vector<int32_t>> read_end_tokens(const json& config, std::string_view file,
                                             int64_t vocabulary, std::vector<int32_t> otherwise) {
  const auto found = config.find("eos_token_id");
  if (found == config.end()) return otherwise;
  std::vector<int32_t> tokens;
  if (found->is_null()) return tokens;
  const json list = found->is_array() ? *found : json::array({*found});
  for (const json& token : list) {
    const bool good = token.is_number_unsigned() &&
                      token.get<uint64_t>() < static_cast<uint64_t>(vocabulary) &&
                      tokens.size() < kEndTokensMax;
    if (!good) {
      return invalid_argument(std::string(file) +
                              ": eos_token_id must be token ids below vocab_size " +
                              std::to_string(vocabulary) + ", at most 64 of them");
    }
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

// The first GGUF file of a directory, by name; empty: there is none.
std::string first_gguf_in(const std::string& directory) {
  std::error_code error;
  std::string first;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string path = entry.path().string();
    if (is_gguf_path(path) && (first.empty() || path < first)) first = path;
  }
  return first;
}

std::optional<DType> dtype_of_torch(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  if (name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  return std::nullopt;
}

Result<const Family*> read_family(const json& config) {
  JsonReader reader(config, "config.json");
  const std::string type = reader.string("model_type", 64);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  const Family* family = family_of(type);
  if (family == nullptr) {
    return invalid_argument("config.json: model_type " + in_quotes(type) +
                            " is not supported; this version reads " + family_names());
  }
  return family;
}

// The directory's name, or the model's for a snapshot in the Hugging Face cache:
// models--facebook--opt-125m/snapshots/27dcfa74...
std::string model_name(const std::string& directory) {
  std::error_code ignored;
  const auto full = std::filesystem::weakly_canonical(directory, ignored);
  const std::string repository = full.parent_path().parent_path().filename().string();
  if (full.parent_path().filename() == "snapshots" && repository.starts_with("models--")) {
    return repository.substr(repository.rfind("--") + 2);
  }
  return full.filename().string();
}

}  // namespace

Result<HfConfig> parse_hf_config(std::string_view config_text, std::string_view generation_text,
                                 std::string_view name) {
  SPILLWAY_ASSIGN_OR_RETURN(const json config, parse_json_object(config_text, "config.json"));
  SPILLWAY_ASSIGN_OR_RETURN(const Family* family, read_family(config));
  HfConfig result;
  SPILLWAY_ASSIGN_OR_RETURN(result.shape, family->read_shape(config));
  ModelShape& shape = result.shape;
  shape.name = name;
  SPILLWAY_ASSIGN_OR_RETURN(
      shape.eos_tokens, read_end_tokens(config, "config.json", shape.vocabulary, shape.eos_tokens));
  if (!generation_text.empty()) {
    constexpr std::string_view kFile = "generation_config.json";
    SPILLWAY_ASSIGN_OR_RETURN(const json generation, parse_json_object(generation_text, kFile));
    SPILLWAY_ASSIGN_OR_RETURN(
        shape.eos_tokens, read_end_tokens(generation, kFile, shape.vocabulary, shape.eos_tokens));
  }
  JsonReader reader(config, "config.json");
  const char* dtype_key = reader.has("dtype") ? "dtype" : "torch_dtype";
  result.dtype = dtype_of_torch(reader.string_or(dtype_key, 64, ""));
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  if (const Status status = validate(shape); !status.ok()) return status.at("config.json");
  return result;
}

namespace {

Result<HfConfig> read_gguf_config(const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(const GgufModel model, GgufModel::open(path));
  SPILLWAY_ASSIGN_OR_RETURN(const std::string config, gguf_config_json(model));
  Result<HfConfig> parsed = parse_hf_config(config, "", gguf_model_name(path));
  if (!parsed.ok()) return parsed.status().at(path + ": its metadata as config.json");
  return parsed;
}

}  // namespace

Result<HfConfig> read_hf_config(const std::string& directory) {
  if (is_gguf_path(directory)) return read_gguf_config(directory);
  Result<std::string> config = read_small_file(directory + "/config.json", kConfigBytesMax);
  if (config.status().code() == Code::kNotFound) {
    if (const std::string gguf = first_gguf_in(directory); !gguf.empty()) {
      return not_found(directory + " has no config.json, but a GGUF file: give " + gguf);
    }
    return not_found(directory +
                     " has no config.json: it is no Hugging Face model directory (of a GGUF model "
                     "give the .gguf file itself)");
  }
  if (!config.ok()) return config.status();
  Result<std::string> generation =
      read_small_file(directory + "/generation_config.json", kConfigBytesMax);
  if (!generation.ok() && generation.status().code() != Code::kNotFound) return generation.status();
  Result<HfConfig> parsed = parse_hf_config(
      config.value(), generation.ok() ? generation.value() : "", model_name(directory));
  if (!parsed.ok()) return parsed.status().at(directory);
  return parsed;
}

}  // namespace spillway
