// Tensors of a GGUF file as those of a checkpoint.
#include "offload/convert/gguf_checkpoint.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <span>

#include "offload/convert/converter.h"
#include "offload/convert/fingerprint.h"
#include "offload/convert/scan.h"
#include "offload/model_file/model_file.h"
#include "offload/model_source.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/json_file.h"
#include "tests/support/places.h"
#include "tests/support/temp_directory.h"

namespace spillway::gguf_checkpoint_test {
namespace {

std::vector<float> numbers_of(const Checkpoint& checkpoint, const std::string& name) {
  const CheckpointTensor* tensor = checkpoint.find(name);
  INFO(name);
  REQUIRE(tensor != nullptr);
  Bytes bytes(tensor->stored.bytes);
  REQUIRE(checkpoint.read(*tensor, 0, bytes).ok());
  const DType type = *tensor->stored.format->dtype;
  std::vector<float> numbers(bytes.size() / dtype_bytes(type));
  convert_elements(type, bytes.data(), DType::kF32,
                   std::as_writable_bytes(std::span(numbers)).data(), numbers.size());
  return numbers;
}

TEST_CASE("a file of another writer: names, shapes, numbers") {
  const std::string folder = test::source_directory() + "/tests/golden/gguf/";
  const auto opened = Checkpoint::open(folder + "small.gguf");
  INFO(opened.status().message());
  REQUIRE(opened.ok());
  const Checkpoint& checkpoint = opened.value();
  const nlohmann::json sums = test::read_json(folder + "small.json")["sums"];
  CHECK(checkpoint.tensors().size() == sums.size());
  for (const auto& [name, expected] : sums.items()) {
    INFO(name);
    const std::vector<float> numbers = numbers_of(checkpoint, name);
    double sum = 0;
    double absolute = 0;
    for (const float number : numbers) {
      sum += static_cast<double>(number);
      absolute += std::fabs(static_cast<double>(number));
    }
    CHECK(sum == Approx(expected[0].get<double>()).epsilon(1e-9));
    CHECK(absolute == Approx(expected[1].get<double>()).epsilon(1e-9));
    CHECK(numbers[0] == expected[2].get<float>());
    CHECK(numbers[7] == expected[3].get<float>());
    CHECK(numbers.back() == expected[4].get<float>());
  }
  CHECK(checkpoint.find("model.embed_tokens.weight")->stored.shape ==
        std::vector<int64_t>{40, 256});
  CHECK(checkpoint.find("model.embed_tokens.weight")->stored.format->name == "F32");
  CHECK(checkpoint.block_formats() == "Q4_K, Q6_K and Q8_0");
  // Numbers that are plain stay as they lie, unless what is stacked with them is not.
  CHECK(checkpoint.find("model.layers.0.mlp.down_proj.weight")->stored.format->name == "BF16");
  CHECK(checkpoint.find("model.layers.0.self_attn.v_proj.weight")->stored.format->name == "F32");
  const auto damage = scan_checkpoint(checkpoint, {});
  REQUIRE(damage.ok());
  CHECK(damage->empty());
}

TEST_CASE("a model without quantised blocks is plain") {
  TempDirectory temp;
  GgufWriter writer = GgufWriter::model("llama");
  writer.add_tensor("blk.0.attn_q.weight", 1, {2, 2}, Bytes(8));
  writer.add_tensor("blk.0.attn_k.weight", 1, {2, 2}, Bytes(8));
  writer.add_tensor("blk.0.attn_q.bias", {2}, {1, 2});
  writer.add_tensor("rope_freqs.weight", {2}, {1, 2});
  write_file(temp / "m.gguf", writer.file());
  const auto checkpoint = Checkpoint::open(temp / "m.gguf");
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint->block_formats().empty());
  CHECK(checkpoint->tensors().size() == 3);
  CHECK(checkpoint->find("model.layers.0.self_attn.q_proj.weight")->stored.format->name == "F16");
  CHECK(checkpoint->find("rope_freqs.weight") == nullptr);
}

TEST_CASE("a tensor in two files of a model is refused") {
  TempDirectory temp;
  for (int64_t i = 0; i < 2; ++i) {
    GgufWriter writer = GgufWriter::model("llama");
    writer.add("split.no", i, GgufType::kU16);
    writer.add("split.count", int64_t{2}, GgufType::kU16);
    writer.add_tensor("output.weight", {1, 1}, {1});
    write_file(temp / ("m-0000" + std::to_string(i + 1) + "-of-00002.gguf"), writer.file());
  }
  const auto checkpoint = Checkpoint::open(temp / "m-00001-of-00002.gguf");
  REQUIRE_FALSE(checkpoint.ok());
  CHECK_THAT(std::string(checkpoint.status().message()),
             Catch::Contains("lm_head.weight") && Catch::Contains("again in"));
}

// Blocks of Q8_0 with the scale 1: every number is its byte.
Bytes q8_blocks(int64_t rows, int64_t columns) {
  Bytes data;
  for (int64_t block = 0; block < rows * columns / 32; ++block) {
    append_little(data, f32_to_f16(1), 2);
    for (int64_t i = 0; i < 32; ++i) append_little(data, static_cast<uint64_t>(block + i) % 100, 1);
  }
  return data;
}

// Blocks of Q4_0 with the scale -0.5.
Bytes q4_blocks(int64_t rows, int64_t columns) {
  Bytes data;
  for (int64_t block = 0; block < rows * columns / 32; ++block) {
    append_little(data, f32_to_f16(-0.5f), 2);
    for (int64_t i = 0; i < 16; ++i)
      append_little(data, static_cast<uint64_t>(block * 7 + i * 37) & 255, 1);
  }
  return data;
}

// A whole Llama of 40 tokens, its matrices in Q8_0; with `mixed` most are Q4_0, the values Q8_0 and
// mlp_down F32.
GgufWriter quantized_llama(bool mixed = false) {
  GgufWriter writer = GgufWriter::model("llama");
  writer.add_llama([&](const std::string& name, int64_t rows, int64_t columns) {
    if (mixed && name.ends_with("ffn_down.weight")) {
      std::vector<float> numbers(static_cast<size_t>(rows * columns));
      for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i));
      return writer.add_tensor(name, {rows, columns}, numbers);
    }
    const bool four_bits = mixed && !name.ends_with("attn_v.weight");
    writer.add_tensor(name, four_bits ? 2 : 8, {rows, columns},
                      four_bits ? q4_blocks(rows, columns) : q8_blocks(rows, columns));
  });
  return writer;
}

// Random super-blocks of 256 numbers, scales about 2e-4: Q4_K (144 bytes, d and dmin first) or Q6_K
// (210 bytes, d last).
Bytes k_blocks(bool four_bits, int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes data;
  for (int64_t block = 0; block < rows * columns / 256; ++block) {
    const auto scale = [&] { append_little(data, f32_to_f16(2e-4f), 2); };
    if (four_bits) {
      scale();
      scale();
    }
    for (int i = 0; i < (four_bits ? 140 : 208); ++i) append_little(data, random() & 255, 1);
    if (!four_bits) scale();
  }
  return data;
}

// A packed matrix's numbers.
std::vector<float> packed_numbers(const ModelFile& file, WeightRole role, int64_t layer) {
  const ModelFileTable& table = file.table();
  const auto tensor = std::find_if(
      table.tensors.begin(), table.tensors.end(),
      [&](const TensorInfo& one) { return one.spec.role == role && one.spec.layer == layer; });
  REQUIRE(tensor != table.tensors.end());
  REQUIRE(tensor->slab_count == 1);
  Bytes slab(table.slabs[tensor->first_slab].bytes);
  REQUIRE(file.read_slab(tensor->first_slab, slab).ok());
  std::vector<float> numbers(static_cast<size_t>(tensor->spec.elements()));
  unpack_rows(tensor->layout, tensor->format, slab.data(), tensor->spec.rows, tensor->spec.columns,
              reinterpret_cast<std::byte*>(numbers.data()));
  return numbers;
}

TEST_CASE("a quantised model keeps its numbers in about its bytes, and it is said") {
  TempDirectory temp;
  write_file(temp / "m.gguf", quantized_llama().file());
  ConvertOptions options;
  const auto layout = GENERATE(MatrixLayout::kPanels16, MatrixLayout::kRows);
  options.layout = [&](Format) { return layout; };
  const auto report = convert_checkpoint(temp / "m.gguf", temp / "m.spill", options);
  INFO(report.status().message());
  REQUIRE(report.ok());
  CHECK(report->format == Format::kQ8_1);
  REQUIRE(report->notes.size() == 1);
  CHECK(report->notes[0] == "Q8_0 blocks are kept, as q8_1: no number changes");
  const auto kept = ModelFile::open(temp / "m.spill");
  const auto checkpoint = Checkpoint::open(temp / "m.gguf");
  const auto stored = [&](const std::string& name) {
    return numbers_of(checkpoint.value(), "model.layers.1." + name + ".weight");
  };
  CHECK(packed_numbers(kept.value(), WeightRole::kMlpDownWeight, 1) == stored("mlp.down_proj"));
  std::vector<float> qkv = stored("self_attn.q_proj");
  for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"}) {
    const auto part = stored(name);
    qkv.insert(qkv.end(), part.begin(), part.end());
  }
  CHECK(packed_numbers(kept.value(), WeightRole::kQkvWeight, 1) == qkv);
  options = {};
  options.format = Format::kF16;
  const auto wide = convert_checkpoint(temp / "m.gguf", temp / "w.spill", options);
  REQUIRE(wide.ok());
  CHECK_THAT(wide->notes.at(0), Catch::Contains("read as numbers and packed as f16"));
  options.format = Format::kQ4;
  const auto narrow = convert_checkpoint(temp / "m.gguf", temp / "q.spill", options);
  REQUIRE(narrow.ok());
  CHECK_THAT(narrow->notes.at(0), Catch::Contains("relative RMS error of"));

  const auto file = ModelFile::open(temp / "m.spill");
  REQUIRE(file.ok());
  CHECK(file->table().shape.name == "m");
  CHECK(file->table().shape.rotary.interleaved);
  CHECK(file->table().files.size() == 2);
  ModelSourceOptions cached;
  cached.cache_directory = temp / "cache";
  std::vector<std::string> said;
  cached.announce = [&](const std::string& text) { said.push_back(text); };
  const auto source = resolve_model(temp / "m.gguf", cached);
  INFO(source.status().message());
  REQUIRE(source.ok());
  CHECK(source->converted);
  // Where its numbers went is no warning.
  CHECK(source->warnings.empty());
  CHECK(said.back() == "note: Q8_0 blocks are kept, as q8_1: no number changes");
  CHECK_FALSE(resolve_model(temp / "m.gguf", cached)->converted);
}

TEST_CASE("each weight has the format of its blocks") {
  TempDirectory temp;
  write_file(temp / "m.gguf", quantized_llama(true).file());
  const auto report = convert_checkpoint(temp / "m.gguf", temp / "m.spill", {});
  INFO(report.status().message());
  REQUIRE(report.ok());
  CHECK(report->format == Format::kQ4_1);
  CHECK_THAT(report->notes.at(0),
             Catch::StartsWith("Q4_0 and Q8_0 blocks are packed as q4_1 and q8_1 with an added "
                               "relative RMS error of 0."));
  const ModelFile file = ModelFile::open(temp / "m.spill").value();
  CHECK(file.table().mixed());
  for (const TensorInfo& tensor : file.table().tensors) {
    if (tensor.spec.kind == WeightKind::kVector) continue;
    INFO(tensor.name());
    const bool plain = tensor.spec.role == WeightRole::kMlpDownWeight;
    const bool eight = plain || tensor.spec.role == WeightRole::kQkvWeight;
    CHECK(tensor.format == (eight ? Format::kQ8_1 : Format::kQ4_1));
    CHECK(tensor.quantization.error_max <= (plain ? 1.001 / 255 : 0));
    CHECK((tensor.quantization.error_max > 0) == plain);
  }
  const auto checkpoint = Checkpoint::open(temp / "m.gguf");
  const auto stored = [&](const std::string& name) {
    return numbers_of(checkpoint.value(), "model.layers.1." + name + ".weight");
  };
  CHECK(packed_numbers(file, WeightRole::kAttentionOutWeight, 1) == stored("self_attn.o_proj"));
  // Codes of 4 bits among those of 8.
  std::vector<float> qkv = stored("self_attn.q_proj");
  for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"}) {
    const auto part = stored(name);
    qkv.insert(qkv.end(), part.begin(), part.end());
  }
  CHECK(packed_numbers(file, WeightRole::kQkvWeight, 1) == qkv);
  const auto down = stored("mlp.down_proj");
  const auto packed = packed_numbers(file, WeightRole::kMlpDownWeight, 1);
  for (size_t i = 0; i < down.size(); ++i) REQUIRE(std::abs(packed[i] - down[i]) < 0.0042f);
}

TEST_CASE("a K mixture is packed as 4 and 8 bits and loses little") {
  TempDirectory temp;
  GgufWriter writer = GgufWriter::model("llama");
  uint32_t seed = 0;
  // As in Q4_K_M files: values and some of mlp_down in 6 bits.
  writer.add_llama(
      [&](const std::string& name, int64_t rows, int64_t columns) {
        const bool six = name.ends_with("attn_v.weight") || name == "blk.1.ffn_down.weight";
        writer.add_tensor(name, six ? 14 : 12, {rows, columns},
                          k_blocks(!six, rows, columns, ++seed));
      },
      256);
  write_file(temp / "m.gguf", writer.file());
  const auto report = convert_checkpoint(temp / "m.gguf", temp / "m.spill", {});
  INFO(report.status().message());
  REQUIRE(report.ok());
  INFO(report->notes.at(0));
  CHECK_THAT(report->notes.at(0), Catch::StartsWith("Q4_K and Q6_K blocks are packed as q4_1 and "
                                                    "q8_1 with an added relative RMS error of 0."));
  const ModelFile file = ModelFile::open(temp / "m.spill").value();
  const auto checkpoint = Checkpoint::open(temp / "m.gguf");
  for (const int64_t layer : {0, 1}) {
    const auto stored = numbers_of(
        checkpoint.value(), "model.layers." + std::to_string(layer) + ".mlp.down_proj.weight");
    const auto packed = packed_numbers(file, WeightRole::kMlpDownWeight, layer);
    double error = 0, sum = 0;
    for (size_t i = 0; i < stored.size(); ++i) {
      error += std::pow(double{packed[i]} - double{stored[i]}, 2);
      sum += std::pow(double{stored[i]}, 2);
    }
    CHECK(error > 0);
    CHECK(std::sqrt(error / sum) < (layer == 0 ? 1e-3 : 1e-2));
  }
}

TEST_CASE("queries, keys and values of GPT-NeoX are read head by head") {
  TempDirectory temp;
  GgufWriter writer = GgufWriter::model("gptneox");
  std::vector<float> numbers;
  for (int i = 0; i < 24 * 2; ++i) numbers.push_back(static_cast<float>(i));
  writer.add_tensor("blk.0.attn_qkv.weight", {24, 2}, numbers);  // 4 heads of 2 rows.
  write_file(temp / "m.gguf", writer.file());
  const auto checkpoint = Checkpoint::open(temp / "m.gguf");
  REQUIRE(checkpoint.ok());
  const std::string name = "gpt_neox.layers.0.attention.query_key_value.weight";
  const std::vector<float> read = numbers_of(checkpoint.value(), name);
  REQUIRE(read.size() == numbers.size());
  size_t wrong = 0;
  for (size_t row = 0; row < 24; ++row) {
    const size_t head = row / 6;
    const size_t which = row % 6 / 2;
    const size_t lies_at = which * 8 + head * 2 + row % 2;
    for (size_t i = 0; i < 2; ++i) wrong += read[row * 2 + i] != numbers[lies_at * 2 + i];
  }
  CHECK(wrong == 0);
  // From the middle of one head into the next.
  Bytes part(20);
  REQUIRE(checkpoint->read(*checkpoint->find(name), 12, part).ok());
  CHECK(std::memcmp(part.data(), read.data() + 3, part.size()) == 0);
}

TEST_CASE("blocks of GPT-NeoX are read head by head, too") {
  TempDirectory temp;
  GgufWriter writer = GgufWriter::model("gptneox");
  writer.add_tensor("blk.0.attn_qkv.weight", 8, {24, 64}, q8_blocks(24, 64));  // 4 heads of 2 rows.
  write_file(temp / "m.gguf", writer.file());
  const auto checkpoint = Checkpoint::open(temp / "m.gguf");
  REQUIRE(checkpoint.ok());
  const std::string name = "gpt_neox.layers.0.attention.query_key_value.weight";
  const std::vector<float> expected = numbers_of(checkpoint.value(), name);
  const CheckpointTensor& tensor = *checkpoint->find(name);
  Bytes blocks(size_t{11} * 2 * 34);
  REQUIRE(checkpoint->read_block_rows(tensor, 5, blocks).ok());
  std::vector<float> found(size_t{11} * 64);
  tensor.stored.blocks->expand(blocks.data(), size_t{11} * 2, found.data());
  CHECK(std::equal(found.begin(), found.end(), expected.begin() + 5 * 64));
}

TEST_CASE("the fingerprint covers header, tensors and every file") {
  TempDirectory temp;
  const std::string path = temp / "m.gguf";
  const auto stamp = std::filesystem::file_time_type::clock::now();
  const auto print = [&](const GgufWriter& writer) {
    write_file(path, writer.file());
    std::filesystem::last_write_time(path, stamp);
    return checkpoint_fingerprint(path).value();
  };
  const auto writer = [](float number, const char* text) {
    GgufWriter model = GgufWriter::model("llama");
    model.add("tokenizer.chat_template", std::string_view(text));
    model.add_tensor("output.weight", {1, 2}, {1, number});
    return model;
  };
  const std::string first = print(writer(2, "a"));
  CHECK(print(writer(2, "a")) == first);
  CHECK(print(writer(3, "a")) != first);
  CHECK(print(writer(2, "b")) != first);
  CHECK(checkpoint_fingerprint_of_stamps(path).ok());
  CHECK(checkpoint_fingerprint(temp / "none.gguf").status().code() == Code::kNotFound);
}

}  // namespace
}  // namespace spillway::gguf_checkpoint_test
