// From a checkpoint directory to a packed file: every number must arrive, in every shape and
// format.
#include "offload/convert/converter.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/weight_layout.h"
#include "offload/model_file/model_file.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/skip.h"
#include "tests/support/temp_directory.h"
#include "tests/support/torch_writer.h"

namespace spillway::converter_test {
namespace {

using nlohmann::json;
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
    const DType type = unpacked_type(tensor.format);
    std::vector<std::byte> dense(count * dtype_bytes(type));
    unpack_rows(tensor.layout, tensor.format, bytes.data() + tensor.offset_in_slab, rows, columns,
                dense.data());
    const size_t first = values.size();
    values.resize(first + count);
    convert_elements(type, dense.data(), DType::kF32,
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

float rounded(DType type, float value) {
  std::byte bytes[4];
  convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(&value), type, bytes, 1);
  convert_elements(type, bytes, DType::kF32, reinterpret_cast<std::byte*>(&value), 1);
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
        const float expected = rounded(element_of(tensor.format), tensor_value(source, i));
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
  std::vector<ModelShape> shapes(6, checkpoint_shape());
  shapes[1].embedding = 16;  // As opt-350m.
  shapes[1].norm_place = NormPlace::kPost;
  shapes[1].final_norm = false;
  shapes[2].set_biases(false);  // As Galactica.
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
      for (const std::optional<Format> format :
           {std::optional<Format>(), std::optional(Format::kF32), std::optional(Format::kBF16),
            std::optional(Format::kF16)}) {
        INFO("shape " << i << ", stored " << dtype_name(stored));
        ConvertOptions options;
        options.format = format;
        const std::string output = temp / "out.spill";
        const auto report = convert_checkpoint(directory, output, options);
        INFO(report.status().message());
        REQUIRE(report.ok());
        CHECK(report->format == format.value_or(plain_format(stored)));
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
  ModelShape shape = checkpoint_shape();
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

// A model directory whose parts a test changes before converting it.
struct Model {
  TempDirectory temp;
  ModelShape shape = checkpoint_shape();
  std::vector<TensorData> tensors = opt_tensors(shape);

  TensorData& tensor(const std::string& name) {
    for (TensorData& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    FAIL("no tensor " << name);
    return tensors.front();
  }
  Result<ConvertReport> convert(const ConvertOptions& options = {}) {
    write_model(temp / "model", shape, tensors);
    return convert_checkpoint(temp / "model", temp / "out.spill", options);
  }
  void check_refused(const std::string& reason) {
    const auto report = convert();
    INFO(reason);
    REQUIRE_FALSE(report.ok());
    CHECK(report.status().code() == Code::kInvalidArgument);
    CHECK_THAT(std::string(report.status().message()), Catch::Contains(reason));
    CHECK_FALSE(std::filesystem::exists(temp / "out.spill"));
    CHECK_FALSE(std::filesystem::exists(temp / "out.spill.partial"));
  }
};

constexpr const char* kEmbedding = "model.decoder.embed_tokens.weight";
constexpr const char* kFc1 = "model.decoder.layers.1.fc1.weight";

TEST_CASE("a .bin checkpoint gives the same packed slabs as safetensors") {
  Model model;
  REQUIRE(model.convert().ok());
  const TempDirectory other;
  std::filesystem::create_directory(other / "model");
  write_file(other / "model/config.json", opt_config(model.shape));
  write_file(other / "model/pytorch_model.bin", torch_file(model.tensors));
  const auto report = convert_checkpoint(other / "model", other / "out.spill", {});
  INFO(report.status().message());
  REQUIRE(report.ok());
  check_numbers(other / "out.spill", model.tensors);
}

TEST_CASE("what will be written is said before it is written") {
  Model model;
  const std::string output = model.temp / "out.spill";
  std::vector<std::string> said;
  ConvertOptions options;
  options.format = Format::kBF16;
  options.announce = [&](const std::string& line) {
    said.push_back(line);
    CHECK_FALSE(std::filesystem::exists(output + ".partial"));
  };
  REQUIRE(model.convert(options).ok());
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0], Catch::StartsWith("converting " + (model.temp / "model") + " as bf16 to " +
                                        output + ": ") &&
                          Catch::Contains("KiB to write, ") && Catch::EndsWith("are free there"));
  // A checkpoint that is refused is not announced.
  model.tensors.pop_back();
  CHECK_FALSE(model.convert(options).ok());
  CHECK(said.size() == 1);
}

TEST_CASE("a disk that is too small is said before anything is written") {
  Model model;
  // The embedding takes half of what is free and more, and is packed again as the tied head.
  model.shape.vocabulary = 1 << 20;
  const uint64_t free = std::filesystem::space(model.temp.path()).available;
  model.shape.embedding =
      static_cast<int64_t>(free / 2 / sizeof(float) / model.shape.vocabulary / 64 + 2) * 64;
  json header;
  uint64_t end = 0;
  const auto add = [&](const TensorData& tensor, uint64_t bytes) {
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  };
  ModelShape small = model.shape;
  small.vocabulary = 1;  // Its file is made of holes
  for (TensorData& tensor : opt_tensors(small)) {
    const uint64_t bytes = tensor.data.size();
    const bool embedding = tensor.name == kEmbedding;
    if (embedding) tensor.shape[0] = model.shape.vocabulary;
    add(tensor, embedding ? bytes * model.shape.vocabulary : bytes);
  }
  model.tensors.clear();
  write_model(model.temp / "model", model.shape, {});
  const std::string weights = model.temp / "model/model.safetensors";
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  write_file(weights, safetensors_raw(text, {}));
  std::error_code error;
  std::filesystem::resize_file(weights, 8 + text.size() + end, error);
  if (error || model.shape.embedding > (1 << 16)) {
    return test::skip("no model's file of holes is as large as the free space here");
  }
  std::vector<std::string> said;
  ConvertOptions options;
  options.announce = [&](const std::string& line) { said.push_back(line); };
  options.room_advice = "get a larger one";
  const Status refused =
      convert_checkpoint(model.temp / "model", model.temp / "out.spill", options).status();
  CHECK(refused.code() == Code::kCapacity);
  CHECK_THAT(std::string(refused.message()),
             Catch::StartsWith("no room for " + (model.temp / "out.spill") + ": ") &&
                 Catch::Contains("as f32 takes ") && Catch::Contains("are free there, ") &&
                 Catch::EndsWith("short; get a larger one"));
  CHECK(said.empty());
  CHECK_FALSE(std::filesystem::exists(model.temp / "out.spill"));
  CHECK_FALSE(std::filesystem::exists(model.temp / "out.spill.partial"));
}

TEST_CASE("a wrong CRC32 stops the conversion unless told otherwise") {
  Model model;
  auto members = torch_members(model.tensors);
  members[5].crc = 1;
  std::filesystem::create_directory(model.temp / "model");
  write_file(model.temp / "model/config.json", opt_config(model.shape));
  write_file(model.temp / "model/pytorch_model.bin", zip_file(members));
  const std::string output = model.temp / "out.spill";
  const auto report = convert_checkpoint(model.temp / "model", output, {});
  REQUIRE_FALSE(report.ok());
  CHECK(report.status().code() == Code::kCorruption);
  CHECK_THAT(std::string(report.status().message()), Catch::Contains("--no-crc"));
  CHECK_FALSE(std::filesystem::exists(output));
  ConvertOptions options;
  options.verify_crc = false;
  CHECK(convert_checkpoint(model.temp / "model", output, options).ok());
}

TEST_CASE("names without 'model.', FlexGen's norm and metaseq's leftover are understood") {
  Model model;
  const auto original = model.tensors;
  for (TensorData& tensor : model.tensors) {
    tensor.name = tensor.name.substr(6);
    if (tensor.name.starts_with("decoder.final_layer_norm")) {
      tensor.name = "decoder.layer_norm" + tensor.name.substr(24);
    }
  }
  model.tensors.push_back(make_tensor("decoder.version", {1}));
  const auto report = model.convert();
  INFO(report.status().message());
  REQUIRE(report.ok());
  check_numbers(model.temp / "out.spill", original);
}

TEST_CASE("a missing tensor is named") {
  Model model;
  std::erase_if(model.tensors, [](const TensorData& t) { return t.name == kFc1; });
  model.check_refused("missing tensor 'decoder.layers.1.fc1.weight'");
}

TEST_CASE("an extra tensor is named") {
  Model model;
  model.tensors.push_back(make_tensor("model.decoder.layers.2.fc1.bias", {64}));
  model.check_refused("unexpected tensor 'model.decoder.layers.2.fc1.bias'");
}

TEST_CASE("a tensor of another shape is named with both shapes") {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{32, 64}, {64, 33}, {2048}, {64, 32, 1}, {}}) {
    Model model;
    model.tensor(kFc1) = make_tensor(kFc1, shape);
    model.check_refused("'" + std::string(kFc1) + "' is [");
  }
}

TEST_CASE("a tensor of a format that no weight has is named") {
  Model model;
  TensorData& tensor = model.tensor("model.decoder.layers.0.fc1.bias");
  tensor.dtype = "I32";
  model.check_refused("is I32; weights must be");
}

TEST_CASE("parts of one weight in different formats are refused") {
  Model model;
  const std::string name = "model.decoder.layers.0.self_attn.k_proj.weight";
  model.tensor(name) = make_tensor(name, {32, 32}, DType::kF16);
  model.check_refused("neighbours");
}

TEST_CASE("one weight under two names is refused") {
  Model model;
  TensorData again = model.tensor(kFc1);
  again.name = again.name.substr(6);
  model.tensors.push_back(again);
  model.check_refused("are the same weight");
}

TEST_CASE("a long list of problems is cut with its count") {
  Model model;
  model.tensors.clear();
  model.check_refused("more");
}

TEST_CASE("a tied head may repeat the embedding but not differ from it") {
  Model model;
  TensorData head = model.tensor(kEmbedding);
  head.name = "lm_head.weight";
  model.tensors.push_back(head);
  const auto report = model.convert();
  INFO(report.status().message());
  REQUIRE(report.ok());
  std::filesystem::remove(model.temp / "out.spill");

  model.tensor("lm_head.weight").data[77] ^= std::byte{1};
  model.check_refused("tie_word_embeddings");
  model.tensor("lm_head.weight") = make_tensor("lm_head.weight", {100, 16});
  model.check_refused("tied weights differ");
  model.tensor("lm_head.weight") = make_tensor("lm_head.weight", {100, 32}, DType::kF16);
  model.check_refused("tied weights differ");
}

TEST_CASE("an untied head must be there") {
  Model model;
  model.shape.tied_head = false;
  model.check_refused("missing tensor 'lm_head.weight'");
}

TEST_CASE("NaN, infinity and overflow are counted by tensor") {
  Model model;
  const auto set = [&](const std::string& name, size_t index, float value) {
    std::memcpy(model.tensor(name).data.data() + index * 4, &value, 4);
  };
  set(kFc1, 5, std::numeric_limits<float>::quiet_NaN());
  set(kFc1, 2047, std::numeric_limits<float>::infinity());
  set(kEmbedding, 0, std::numeric_limits<float>::quiet_NaN());
  set("model.decoder.layers.0.fc2.weight", 9, 1e30f);
  ConvertOptions options;
  options.format = Format::kF16;
  const auto report = model.convert(options);
  REQUIRE(report.ok());
  std::map<std::string, TensorDamage> damage;
  for (const TensorDamage& entry : report->damage) damage[entry.tensor] = entry;
  REQUIRE(damage.size() == 3);
  CHECK(damage[kFc1].stored.nan == 1);
  CHECK(damage[kFc1].stored.inf == 1);
  CHECK(damage[kFc1].overflow == 0);
  CHECK(damage[kEmbedding].stored.nan == 1);  // Once, although the head is the same tensor.
  CHECK(damage["model.decoder.layers.0.fc2.weight"].overflow == 1);
  CHECK_THAT(damage_text(damage[kFc1], Format::kF16), Catch::Contains("1 NaN 1 infinite"));
  // The packed file tells the same later on.
  uint64_t nan = 0;
  uint64_t inf = 0;
  const ModelFile file = ModelFile::open(model.temp / "out.spill").value();
  for (const TensorInfo& tensor : file.table().tensors) {
    nan += tensor.nan_count;
    inf += tensor.inf_count;
  }
  CHECK(nan == 3);  // fc1, embedding, head.
  CHECK(inf == 2);
}

TEST_CASE("mixed formats are packed as f32 unless told otherwise") {
  Model model;
  model.tensor(kFc1) = make_tensor(kFc1, {64, 32}, DType::kBF16);
  CHECK(model.convert()->format == Format::kF32);
}

TEST_CASE("an f16 checkpoint becomes bf16 on request only") {
  Model model;
  model.tensors = opt_tensors(model.shape, DType::kF16);
  ConvertOptions options;
  CHECK(model.convert(options)->format == Format::kF16);
  options.bf16_for_f16 = true;
  CHECK(model.convert(options)->format == Format::kBF16);
  options.format = Format::kF16;
  CHECK(model.convert(options)->format == Format::kF16);
}

// The checkpoint's numbers of a weight, rows of its columns.
std::vector<float> source_numbers(const Model& model, const TensorInfo& tensor) {
  std::vector<float> values;
  for (const std::string& name : expected_names(model.shape, tensor.spec)) {
    for (const TensorData& source : model.tensors) {
      if (source.name != name) continue;
      size_t count = 1;
      for (const int64_t size : source.shape) count *= static_cast<size_t>(size);
      for (size_t i = 0; i < count; ++i) values.push_back(tensor_value(source, i));
    }
  }
  return values;
}

TEST_CASE("every format becomes q4, its head q8, with its error in the table") {
  const DType source = GENERATE(DType::kF32, DType::kBF16, DType::kF16);
  INFO(dtype_name(source));
  Model model;
  model.tensors = opt_tensors(model.shape, source);
  ConvertOptions options;
  options.format = Format::kQ4;
  const auto report = model.convert(options);
  INFO(report.status().message());
  REQUIRE(report.ok());
  CHECK(report->damage.empty());
  const ModelFile file = ModelFile::open(model.temp / "out.spill").value();
  QuantError total;
  for (const TensorInfo& tensor : file.table().tensors) {
    INFO(role_name(tensor.spec.role) << " layer " << tensor.spec.layer);
    const auto values = source_numbers(model, tensor);
    std::vector<float> expected = values;
    QuantError error;
    if (tensor.spec.kind != WeightKind::kVector) {
      const Format format = tensor.spec.role == WeightRole::kHead ? Format::kQ8 : Format::kQ4;
      CHECK(tensor.format == format);
      const int64_t rows = tensor.spec.rows, columns = tensor.spec.columns;
      std::vector<std::byte> packed(packed_bytes(MatrixLayout::kRows, format, rows, columns));
      pack_rows(MatrixLayout::kRows, format, DType::kF32,
                reinterpret_cast<const std::byte*>(values.data()), rows, columns, packed.data(),
                &error, nullptr, tensor.spec.kind == WeightKind::kMatrix);
      unpack_rows(MatrixLayout::kRows, format, packed.data(), rows, columns,
                  reinterpret_cast<std::byte*>(expected.data()));
    }
    CHECK(read_weight(file, tensor) == expected);
    CHECK(tensor.quantization.relative_rms() == Approx(error.relative_rms()));
    CHECK(tensor.quantization.error_max == error.error_max);
    total.add(error);
  }
  CHECK(total.relative_rms() > 0);
  CHECK(report->quantization.relative_rms() == Approx(total.relative_rms()));
  CHECK(file.table().quantization().error_max == total.error_max);
}

TEST_CASE("what q4 cannot hold is counted, and a NaN spoils its group visibly") {
  Model model;
  TensorData& fc1 = model.tensor(kFc1);
  const auto set = [&](size_t index, float value) {
    std::memcpy(fc1.data.data() + index * sizeof(float), &value, sizeof(value));
  };
  REQUIRE(fc1.shape == std::vector<int64_t>{64, 32});
  set(5, NAN);
  set(32, -1e6f);
  ConvertOptions options;
  options.format = Format::kQ4;
  const auto report = model.convert(options);
  REQUIRE(report.ok());
  REQUIRE(report->damage.size() == 1);
  CHECK(report->damage[0].stored.nan == 1);
  CHECK(report->damage[0].overflow == 32);  // The Hadamard matrix spread it over its block.
  const ModelFile file = ModelFile::open(model.temp / "out.spill").value();
  for (const TensorInfo& tensor : file.table().tensors) {
    const bool damaged = tensor.spec.role == WeightRole::kMlpUpWeight && tensor.spec.layer == 1;
    CHECK(tensor.nan_count == (damaged ? 32 : 0));  // One row of 32 inputs is one group.
    CHECK(tensor.quantization.saturated == (damaged ? 32 : 0));
  }
}

TEST_CASE("a conversion that is stopped leaves what was there") {
  Model model;
  // Enough work that the first tick comes before the end.
  model.shape.vocabulary = 1 << 19;
  model.tensors = opt_tensors(model.shape);
  write_file(model.temp / "out.spill", "old");
  ConvertOptions options;
  options.threads = 1;
  options.progress = [](uint64_t, uint64_t) { return false; };
  const auto report = model.convert(options);
  if (!report.ok()) {
    CHECK(report.status().code() == Code::kCancelled);
    CHECK(read_small_file(model.temp / "out.spill", 100).value() == "old");
  }
  CHECK_FALSE(std::filesystem::exists(model.temp / "out.spill.partial"));
}

TEST_CASE("tokenizer files travel inside the packed file") {
  Model model;
  std::filesystem::create_directory(model.temp / "model");
  write_file(model.temp / "model/vocab.json", "{\"a\":0}");
  write_file(model.temp / "model/merges.txt", "#version: 0.2\n\xff\n");
  write_file(model.temp / "model/tokenizer_config.json", "{}");
  write_file(model.temp / "model/other.json", "{}");
  REQUIRE(model.convert().ok());
  const auto files = ModelFile::open(model.temp / "out.spill").value().table().files;
  REQUIRE(files.size() == 3);
  CHECK(files[0] == std::pair<std::string, std::string>("vocab.json", "{\"a\":0}"));
  CHECK(files[1].second == "#version: 0.2\n\xff\n");
  write_file(model.temp / "model/tokenizer.json", "version https://git-lfs.github.com/spec/v1\n");
  CHECK_THAT(std::string(model.convert().status().message()), Catch::Contains("Git-LFS"));
}

TEST_CASE("progress ends at the total") {
  Model model;
  uint64_t last_done = 0;
  uint64_t last_total = 1;
  ConvertOptions options;
  options.progress = [&](uint64_t done, uint64_t total) {
    last_done = done;
    last_total = total;
    return true;
  };
  REQUIRE(model.convert(options).ok());
  CHECK(last_done == last_total);
}

}  // namespace
}  // namespace spillway::converter_test
