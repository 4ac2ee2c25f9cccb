// From a checkpoint directory to a packed file: every number must arrive, in every shape and
// format.
#include "offload/convert/converter.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>

#include "kernels/weight_layout.h"
#include "offload/model_file.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace spillway {
namespace {

using TensorMap = std::map<std::string, const TensorData*>;

void write_model(const std::string& directory, const ModelShape& shape,
                 const std::vector<TensorData>& tensors) {
  std::filesystem::create_directories(directory);
  write_file(directory + "/config.json", opt_config(shape));
  write_file(directory + "/model.safetensors", safetensors_file(tensors));
}

// A weight of a packed file as rows of floats.
std::vector<float> read_weight(const ModelFile& file, const TensorInfo& tensor) {
  std::vector<float> values;
  const int64_t columns = tensor.spec.columns;
  for (uint32_t i = 0; i < tensor.slab_count; ++i) {
    const uint32_t slab = tensor.first_slab + i;
    std::vector<std::byte> bytes(file.table().slabs[slab].bytes);
    REQUIRE(file.read_slab(slab, bytes).ok());
    const int64_t rows = tensor.rows_in_slab(i);
    const auto count = static_cast<size_t>(rows * columns);
    std::vector<std::byte> dense(count * dtype_bytes(tensor.format));
    unpack_rows(tensor.layout, tensor.format, bytes.data() + tensor.offset_in_slab, rows, columns,
                dense.data());
    const size_t first = values.size();
    values.resize(first + count);
    convert_elements(tensor.format, dense.data(), DType::kF32,
                     reinterpret_cast<std::byte*>(values.data() + first), count);
  }
  return values;
}

// The names that a weight is made of, spelled out a second time on purpose.
std::vector<std::string> expected_names(const ModelShape& shape, const WeightSpec& spec) {
  const std::string layer = "model.decoder.layers." + std::to_string(spec.layer) + ".";
  const std::string role(role_name(spec.role));
  const std::string suffix = role.substr(role.find('.') + 1);
  const std::string attention = layer + "self_attn.";
  if (role.starts_with("qkv.")) {
    return {attention + "q_proj." + suffix, attention + "k_proj." + suffix,
            attention + "v_proj." + suffix};
  }
  const std::map<std::string, std::string> names = {
      {"token_embedding", "model.decoder.embed_tokens.weight"},
      {"position_embedding", "model.decoder.embed_positions.weight"},
      {"project_in", "model.decoder.project_in.weight"},
      {"project_out", "model.decoder.project_out.weight"},
      {"attention_norm." + suffix, layer + "self_attn_layer_norm." + suffix},
      {"attention_out." + suffix, attention + "out_proj." + suffix},
      {"mlp_norm." + suffix, layer + "final_layer_norm." + suffix},
      {"mlp_up." + suffix, layer + "fc1." + suffix},
      {"mlp_down." + suffix, layer + "fc2." + suffix},
      {"final_norm." + suffix, "model.decoder.final_layer_norm." + suffix},
      {"head", shape.tied_head ? "model.decoder.embed_tokens.weight" : "lm_head.weight"},
  };
  return {names.at(role)};
}

float rounded(DType format, float value) {
  std::byte bytes[4];
  convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(&value), format, bytes, 1);
  convert_elements(format, bytes, DType::kF32, reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

// Every number of every weight of the packed file is the checkpoint's, rounded to the format.
void check_numbers(const std::string& path, const std::vector<TensorData>& tensors) {
  Result<ModelFile> opened = ModelFile::open(path);
  INFO(opened.status().message());
  REQUIRE(opened.ok());
  const ModelFile& file = opened.value();
  TensorMap by_name;
  for (const TensorData& tensor : tensors) by_name[tensor.name] = &tensor;
  for (const TensorInfo& tensor : file.table().tensors) {
    INFO(role_name(tensor.spec.role) << " layer " << tensor.spec.layer);
    const std::vector<float> actual = read_weight(file, tensor);
    size_t at = 0;
    size_t wrong = 0;
    for (const std::string& name : expected_names(file.table().shape, tensor.spec)) {
      const TensorData& source = *by_name.at(name);
      size_t count = 1;
      for (const int64_t size : source.shape) count *= static_cast<size_t>(size);
      REQUIRE(at + count <= actual.size());
      for (size_t i = 0; i < count; ++i) {
        const float expected = rounded(tensor.format, tensor_value(source, i));
        wrong += actual[at + i] == expected ? 0 : 1;
      }
      at += count;
    }
    CHECK(at == actual.size());
    CHECK(wrong == 0);
  }
}

Status convert(const std::string& directory, const std::string& output,
               const ConvertOptions& options = {}) {
  return convert_checkpoint(directory, output, options).status();
}

TEST_CASE("every number of a checkpoint arrives, for every shape and format") {
  std::vector<ModelShape> shapes(6, tiny_shape());
  shapes[1].embedding = 16;  // As opt-350m.
  shapes[1].norm_place = NormPlace::kPost;
  shapes[1].final_norm = false;
  shapes[2].bias = false;  // As Galactica.
  shapes[2].norm_affine = false;
  shapes[2].activation = Activation::kGelu;
  shapes[3].tied_head = false;
  shapes[3].activation = Activation::kGeluTanh;
  shapes[4].final_norm = false;
  shapes[5].hidden = shapes[5].embedding = 60;  // Nothing divides 64.
  shapes[5].heads = shapes[5].kv_heads = 3;
  shapes[5].head_size = 20;
  shapes[5].mlp = 100;
  shapes[5].vocabulary = 203;
  const TempDirectory temp;
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (const DType stored : {DType::kF32, DType::kBF16, DType::kF16}) {
      const std::string directory = temp / ("model" + std::to_string(i));
      const auto tensors = opt_tensors(shapes[i], stored);
      write_model(directory, shapes[i], tensors);
      for (const std::optional<DType> format :
           {std::optional<DType>(), std::optional(DType::kF32), std::optional(DType::kBF16),
            std::optional(DType::kF16)}) {
        INFO("shape " << i << ", stored " << dtype_name(stored));
        ConvertOptions options;
        options.format = format;
        const std::string output = temp / "out.spill";
        const auto report = convert_checkpoint(directory, output, options);
        INFO(report.status().message());
        REQUIRE(report.ok());
        CHECK(report->format == format.value_or(stored));
        CHECK(report->damage.empty());
        ModelShape expected = shapes[i];
        expected.name = "model" + std::to_string(i);
        CHECK(ModelFile::open(output).value().table().shape == expected);
        check_numbers(output, tensors);
      }
    }
  }
}

TEST_CASE("a matrix of many slabs keeps its rows in order") {
  ModelShape shape = tiny_shape();
  shape.layers = 1;
  shape.vocabulary = 70'001;  // 70,001 x 32 floats are 8.5 MiB: two slabs.
  const TempDirectory temp;
  const auto tensors = opt_tensors(shape);
  write_model(temp / "model", shape, tensors);
  REQUIRE(convert(temp / "model", temp / "out.spill").ok());
  const ModelFile file = ModelFile::open(temp / "out.spill").value();
  CHECK(file.table().tensors.front().slab_count == 2);
  CHECK(file.table().tensors.back().slab_count == 2);
  check_numbers(temp / "out.spill", tensors);
}

}  // namespace
}  // namespace spillway
