// Slabs read from safetensors files hold the bytes of those of a packed file.
#include "offload/checkpoint_slabs.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/checked_math.h"
#include "offload/convert/converter.h"
#include "offload/model_file/model_file.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/places.h"
#include "tests/support/temp_directory.h"
#include "tests/support/torch_writer.h"

namespace spillway::checkpoint_slabs_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Nothing in it is a multiple of a panel, a sector or a slab: heads of 22, and a table of two
// slabs.
ModelShape odd_shape() {
  ModelShape shape = checkpoint_shape();
  shape.hidden = shape.embedding = 88;
  shape.head_size = 22;
  shape.mlp = 150;
  shape.vocabulary = 50'003;
  return shape;
}

// A directory whose tensors lie in `shards` files in turn.
std::string write_model(const TempDirectory& temp, const std::vector<TensorData>& tensors,
                        const ModelShape& shape, size_t shards) {
  const std::string directory = temp / "model";
  fs::create_directories(directory);
  write_file(directory + "/config.json", opt_config(shape));
  if (shards == 1) {
    write_file(directory + "/model.safetensors", safetensors_file(tensors));
    return directory;
  }
  json map;
  std::vector<std::vector<TensorData>> files(shards);
  for (size_t i = 0; i < tensors.size(); ++i) {
    files[i % shards].push_back(tensors[i]);
    map[tensors[i].name] = "part-" + std::to_string(i % shards) + ".safetensors";
  }
  for (size_t i = 0; i < shards; ++i) {
    write_file(directory + "/part-" + std::to_string(i) + ".safetensors",
               safetensors_file(files[i]));
  }
  write_file(directory + "/model.safetensors.index.json", json{{"weight_map", map}}.dump());
  return directory;
}

CheckpointSlabsOptions options_for(MatrixLayout layout) {
  CheckpointSlabsOptions options;
  options.layout = [layout](Format) { return layout; };
  return options;
}

// The bytes of a slab that are not padding behind all of its weights.
uint64_t used_bytes(const ModelFileTable& table, uint32_t slab) {
  uint64_t bytes = 0;
  for (const TensorInfo& tensor : table.tensors) {
    if (slab < tensor.first_slab || slab >= tensor.first_slab + tensor.slab_count) continue;
    if (tensor.spec.kind == WeightKind::kVector) {
      const auto numbers = static_cast<uint64_t>(tensor.spec.elements()) * sizeof(float);
      bytes = std::max(bytes, tensor.offset_in_slab + round_up(numbers, 64));
    } else {
      bytes = packed_bytes(tensor.layout, tensor.format,
                           tensor.rows_in_slab(slab - tensor.first_slab), tensor.spec.columns);
    }
  }
  return bytes;
}

void check_slabs(const CheckpointSlabs& slabs, const std::string& packed) {
  const ModelFile file = ModelFile::open(packed).value();
  const ModelFileTable& table = slabs.table();
  REQUIRE(table.slabs.size() == file.table().slabs.size());
  CHECK(table.source == file.table().source);
  AlignedBytes memory;
  for (uint32_t i = 0; i < table.slabs.size(); ++i) {
    INFO("slab " << i);
    std::vector<std::byte> expected(file.table().slabs[i].bytes);
    REQUIRE(file.read_slab(i, expected).ok());
    const uint64_t used = used_bytes(file.table(), i);
    REQUIRE(used <= expected.size());
    const auto bytes = memory.reserve(table.slabs[i].bytes);
    std::memset(bytes.data(), 0xcc, bytes.size());
    REQUIRE(slabs.load(i, bytes).ok());
    CHECK(std::memcmp(bytes.data(), expected.data(), used) == 0);
    // As a stream does it: the reads one by one, in another order.
    std::memset(bytes.data(), 0xcc, bytes.size());
    std::vector<SlabRead> reads = slabs.reads(i);
    std::reverse(reads.begin(), reads.end());
    for (const SlabRead& read : reads) {
      REQUIRE(read.bytes > 0);
      REQUIRE(read.at + read.bytes <= bytes.size());
      REQUIRE(read.buffered->read(read.offset, bytes.subspan(read.at, read.bytes)).ok());
      if (read.file == read.buffered) continue;  // The last bytes of a file
      CHECK((read.offset | read.bytes | read.at) % kFileAlignment == 0);
    }
    REQUIRE(slabs.arrange(i, bytes, true).ok());
    CHECK(std::memcmp(bytes.data(), expected.data(), used) == 0);
  }
}

TEST_CASE("slabs of a checkpoint are those of its packed file, byte by byte") {
  const ModelShape shape = odd_shape();
  for (const DType type : {DType::kBF16, DType::kF16}) {
    const std::vector<TensorData> tensors = opt_tensors(shape, type);
    for (const size_t shards : {1, 3}) {
      const TempDirectory temp;
      const std::string directory = write_model(temp, tensors, shape, shards);
      for (const MatrixLayout layout :
           {MatrixLayout::kRows, MatrixLayout::kPanels16, MatrixLayout::kPanels64}) {
        if (!layout_holds(layout, plain_format(type))) continue;
        INFO(dtype_name(type) << " " << layout_name(layout) << ", files: " << shards);
        ConvertOptions convert;
        convert.layout = [layout](Format) { return layout; };
        REQUIRE(convert_checkpoint(directory, temp / "m.spill", convert).ok());
        const auto slabs = CheckpointSlabs::open(directory, options_for(layout));
        REQUIRE(slabs.status().message() == "");
        CHECK(slabs.value()->table().tensors.front().slab_count == 2);
        check_slabs(*slabs.value(), temp / "m.spill");
      }
    }
  }
}

// A golden checkpoint, rounded to bf16.
std::string rounded(const TempDirectory& temp, const std::string& name) {
  const std::string golden =
      test::source_directory() + "/tests/golden/checkpoints/" + name + "/safetensors";
  const Checkpoint checkpoint = Checkpoint::open(golden).value();
  std::vector<TensorData> tensors;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const DType stored = tensor.stored.format->dtype.value();
    Bytes bytes(tensor.stored.bytes);
    REQUIRE(checkpoint.read(tensor, 0, bytes).ok());
    const size_t count = bytes.size() / dtype_bytes(stored);
    TensorData data{tensor.stored.name, "BF16", tensor.stored.shape, Bytes(count * 2)};
    convert_elements(stored, bytes.data(), DType::kBF16, data.data.data(), count);
    tensors.push_back(std::move(data));
  }
  const std::string directory = temp / "model";
  fs::create_directories(directory);
  fs::copy_file(golden + "/config.json", directory + "/config.json");
  write_file(directory + "/model.safetensors", safetensors_file(tensors));
  return directory;
}

TEST_CASE("slabs of families whose tensors are cut otherwise") {
  // Heads in turn, one tensor for query, key and value and for gate and up, gated ones of two.
  for (const char* name : {"gpt_neox", "phi3_longrope", "llama3", "qwen3"}) {
    INFO(name);
    const TempDirectory temp;
    const std::string directory = rounded(temp, name);
    REQUIRE(convert_checkpoint(directory, temp / "m.spill", {}).ok());
    const auto slabs = CheckpointSlabs::open(directory, options_for(MatrixLayout::kPanels16));
    REQUIRE(slabs.status().message() == "");
    check_slabs(*slabs.value(), temp / "m.spill");
  }
}

TEST_CASE("vectors may have another format than the matrices") {
  const TempDirectory temp;
  std::vector<TensorData> tensors = opt_tensors(odd_shape(), DType::kBF16);
  for (TensorData& tensor : tensors) {
    if (tensor.name.find("layer_norm") != std::string::npos) {
      tensor = make_tensor(tensor.name, tensor.shape, DType::kF32);
    }
  }
  const std::string directory = write_model(temp, tensors, odd_shape(), 1);
  REQUIRE(convert_checkpoint(directory, temp / "m.spill", {}).ok());
  const auto slabs = CheckpointSlabs::open(directory, options_for(MatrixLayout::kPanels16));
  REQUIRE(slabs.status().message() == "");
  check_slabs(*slabs.value(), temp / "m.spill");
}

TEST_CASE("what cannot be streamed as it lies is refused by name") {
  const ModelShape shape = checkpoint_shape();
  const auto refused = [](const std::string& model,
                          CheckpointSlabsOptions options = options_for(MatrixLayout::kPanels16)) {
    const Status status = CheckpointSlabs::open(model, options).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK_THAT(std::string(status.message()), Catch::Contains("--weights-from checkpoint"));
    return std::string(status.message());
  };
  const TempDirectory temp;
  CHECK_THAT(refused(write_model(temp, opt_tensors(shape), shape, 1)),
             Catch::Contains("are to be f32"));
  CheckpointSlabsOptions options = options_for(MatrixLayout::kPanels16);
  options.format = Format::kBF16;
  CHECK_THAT(refused(temp / "model", options),
             Catch::Contains("has its token_embedding as f32, not as bf16"));
  options.format = Format::kQ4;
  CHECK_THAT(refused(temp / "model", options), Catch::Contains("are to be q4"));
  const std::vector<TensorData> halves = opt_tensors(shape, DType::kF16);
  write_model(temp, halves, shape, 1);
  options.format.reset();
  options.bf16_for_f16 = true;
  CHECK_THAT(refused(temp / "model", options), Catch::Contains("--format f16"));
  std::vector<TensorData> twice = halves;
  twice.push_back(twice.front());
  twice.back().name = "lm_head.weight";
  CHECK_THAT(refused(write_model(temp, twice, shape, 1)), Catch::Contains("tied head"));
  fs::remove(temp / "model/model.safetensors");
  write_file(temp / "model/pytorch_model.bin", torch_file(halves));
  CHECK_THAT(refused(temp / "model"), Catch::Contains("pytorch_model.bin is no safetensors file"));
  write_file(temp / "m.gguf", "GGUF");
  CHECK_THAT(refused(temp / "m.gguf"), Catch::Contains("is a GGUF file"));
  write_file(temp / "m.spill", "SPILLWAY");
  CHECK_THAT(refused(temp / "m.spill"), Catch::Contains("is no model directory"));
  CHECK(CheckpointSlabs::open(temp / "nothing", options).status().code() == Code::kNotFound);
}

TEST_CASE("files that change while they are used are noticed") {
  const TempDirectory temp;
  const ModelShape shape = checkpoint_shape();
  const std::string directory = write_model(temp, opt_tensors(shape, DType::kBF16), shape, 1);
  const auto slabs = CheckpointSlabs::open(directory, options_for(MatrixLayout::kPanels16));
  REQUIRE(slabs.status().message() == "");
  CHECK(slabs.value()->largest_file() == directory + "/model.safetensors");
  AlignedBytes memory;
  const auto bytes = memory.reserve(slabs.value()->table().slabs[0].bytes);
  CHECK(slabs.value()->load(0, bytes).ok());
  fs::last_write_time(directory + "/model.safetensors",
                      fs::file_time_type::clock::now() + std::chrono::hours(1));
  const Status changed = slabs.value()->load(0, bytes);
  CHECK(changed.code() == Code::kCorruption);
  CHECK_THAT(std::string(changed.message()), Catch::Contains("model.safetensors has changed"));
}

}  // namespace
}  // namespace spillway::checkpoint_slabs_test
