// A rank's slabs hold the rows of the whole model's packed file that are the rank's, whatever the
// layouts, and do not pass when the file is damaged.
#include "offload/rank_slabs.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kernels/base/rank_shape.h"
#include "offload/checkpoint_slabs.h"
#include "offload/convert/converter.h"
#include "offload/io/aligned_bytes.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace spillway::rank_slabs_test {
namespace {

namespace fs = std::filesystem;

// Slabs are 8 MiB: the embeddings and the MLP's matrices have several, of which ranks have parts.
ModelShape wide_shape() {
  ModelShape shape = checkpoint_shape();
  shape.layers = 1;
  shape.heads = shape.kv_heads = 4;
  shape.head_size = 64;
  shape.hidden = shape.embedding = 256;
  shape.mlp = 10240;
  shape.vocabulary = 20'003;
  return shape;
}

// Nothing in it is a multiple of a panel.
ModelShape odd_shape() {
  ModelShape shape = checkpoint_shape();
  shape.heads = shape.kv_heads = 4;
  shape.hidden = shape.embedding = 88;
  shape.head_size = 22;
  shape.mlp = 148;
  return shape;
}

std::string write_model(const TempDirectory& temp, const ModelShape& shape, DType type) {
  const std::string directory = temp / "model";
  fs::create_directories(directory);
  write_file(directory + "/config.json", opt_config(shape));
  write_file(directory + "/model.safetensors", safetensors_file(opt_tensors(shape, type)));
  return directory;
}

std::shared_ptr<const ModelFile> packed(const TempDirectory& temp, const ModelShape& shape,
                                        Format format, MatrixLayout layout) {
  const DType type = format == Format::kBF16 ? DType::kBF16 : DType::kF32;
  ConvertOptions options;
  options.format = format;
  options.layout = [layout](Format) { return layout; };
  REQUIRE(convert_checkpoint(write_model(temp, shape, type), temp / "m.spill", options).ok());
  return std::make_shared<const ModelFile>(ModelFile::open(temp / "m.spill").value());
}

// As a stream reads them: one by one, in another order.
Status read_as_stream(const SlabSource& source, uint32_t slab, std::span<std::byte> memory) {
  std::vector<SlabRead> reads = source.reads(slab);
  std::reverse(reads.begin(), reads.end());
  for (const SlabRead& read : reads) {
    REQUIRE(read.bytes > 0);
    REQUIRE(read.at + read.bytes <= memory.size());
    CHECK((read.offset | read.bytes | read.at) % kFileAlignment == 0);
    REQUIRE(read.file->read(read.offset, memory.subspan(read.at, read.bytes)).ok());
  }
  return source.arrange(slab, memory, true);
}

// The rows of a matrix or table as the checkpoint has them, or the numbers of a vector.
std::vector<std::byte> rows_of(const TensorInfo& tensor,
                               const std::vector<std::vector<std::byte>>& slabs) {
  const int64_t columns = tensor.spec.columns;
  if (tensor.spec.kind == WeightKind::kVector) {
    const auto* from = slabs[tensor.first_slab].data() + tensor.offset_in_slab;
    return {from, from + static_cast<size_t>(columns) * sizeof(float)};
  }
  std::vector<std::byte> all;
  for (uint32_t i = 0; i < tensor.slab_count; ++i) {
    const int64_t rows = tensor.rows_in_slab(i);
    std::vector<std::byte> some(static_cast<size_t>(rows * columns) *
                                dtype_bytes(unpacked_type(tensor.format)));
    unpack_rows(tensor.layout, tensor.format, slabs[tensor.first_slab + i].data(), rows, columns,
                some.data());
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void check_rank(const std::shared_ptr<const ModelFile>& file, const ModelShape& whole, int64_t rank,
                int64_t ranks, MatrixLayout layout) {
  const ModelFileTable& of_file = file->table();
  std::vector<std::vector<std::byte>> all, own;
  for (uint32_t i = 0; i < of_file.slabs.size(); ++i) {
    REQUIRE(file->read_slab(i, all.emplace_back(of_file.slabs[i].bytes)).ok());
  }
  const auto opened = RankSlabs::open(file, whole, rank, ranks, layout);
  REQUIRE(opened.status().message() == "");
  const RankSlabs& slabs = *opened.value();
  const ModelFileTable& table = slabs.table();
  CHECK(slabs.verifies());
  AlignedBytes memory;
  for (uint32_t i = 0; i < table.slabs.size(); ++i) {
    INFO("slab " << i);
    const auto bytes = memory.reserve(table.slabs[i].bytes);
    std::memset(bytes.data(), 0xcc, bytes.size());
    REQUIRE(slabs.load(i, bytes).ok());
    own.emplace_back(bytes.begin(), bytes.end());
    std::memset(bytes.data(), 0xcc, bytes.size());
    REQUIRE(read_as_stream(slabs, i, bytes).message() == "");
    CHECK(std::equal(bytes.begin(), bytes.end(), own.back().begin()));
  }
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    INFO(table.tensors[t].name());
    const TensorInfo& tensor = table.tensors[t];
    const std::vector<std::byte> whole_rows = rows_of(of_file.tensors[t], all);
    const bool vector = tensor.spec.kind == WeightKind::kVector;
    const auto row = static_cast<size_t>(vector ? sizeof(float)
                                                : static_cast<size_t>(tensor.spec.columns) *
                                                      dtype_bytes(unpacked_type(tensor.format)));
    std::vector<std::byte> expected;
    for (const RowSpan& span : rank_rows(whole, of_file.tensors[t].spec, rank, ranks)) {
      const auto* from = whole_rows.data() + static_cast<size_t>(span.first) * row;
      expected.insert(expected.end(), from, from + static_cast<size_t>(span.count) * row);
    }
    CHECK(rows_of(tensor, own) == expected);
  }
}

TEST_CASE("a rank's slabs have its rows of the packed file") {
  const Format format = GENERATE(Format::kF32, Format::kBF16, Format::kQ4, Format::kQ8);
  const bool odd = GENERATE(false, true);
  const ModelShape shape = odd ? odd_shape() : wide_shape();
  for (const MatrixLayout layout : {MatrixLayout::kRows, MatrixLayout::kPanels16}) {
    const TempDirectory temp;
    const auto file = packed(temp, shape, format, layout);
    for (const int64_t rank : {0, 1}) {
      INFO(format_name(format) << " " << layout_name(layout) << (odd ? ", odd" : "") << ", rank "
                               << rank);
      check_rank(file, shape, rank, 2, layout);
    }
    INFO(format_name(format) << " from " << layout_name(layout) << ", rank 2 of 4");
    // Also in the layout of another device.
    check_rank(file, shape, 2, 4, MatrixLayout::kRows);
    if (odd) check_rank(file, shape, 2, 4, MatrixLayout::kPanels16);
  }
}

TEST_CASE("a rank's slabs of panels of 64 outputs") {
  const ModelShape shape = GENERATE(odd_shape(), wide_shape());
  const TempDirectory temp;
  const auto file = packed(temp, shape, Format::kBF16, MatrixLayout::kPanels64);
  check_rank(file, shape, 1, 2, MatrixLayout::kPanels64);
  check_rank(file, shape, 3, 4, MatrixLayout::kPanels64);
}

TEST_CASE("a rank's slabs of a checkpoint are those of its packed file") {
  const ModelShape shape = GENERATE(odd_shape(), wide_shape());
  const TempDirectory temp;
  const auto file = packed(temp, shape, Format::kBF16, MatrixLayout::kPanels16);
  CheckpointSlabsOptions options;
  options.layout = [](Format) { return MatrixLayout::kPanels16; };
  options.ranks = 2;
  options.rank = 1;
  const auto of_checkpoint = CheckpointSlabs::open(temp / "model", options).value();
  const auto of_file = RankSlabs::open(file, shape, 1, 2, MatrixLayout::kPanels16).value();
  const ModelFileTable& table = of_file->table();
  REQUIRE(of_checkpoint->table().slabs.size() == table.slabs.size());
  CHECK(of_checkpoint->table().shape.rank == 1);
  std::vector<std::vector<std::byte>> expected, found;
  AlignedBytes memory;
  for (uint32_t i = 0; i < table.slabs.size(); ++i) {
    const auto a = memory.reserve(table.slabs[i].bytes);
    REQUIRE(of_file->load(i, a).ok());
    expected.emplace_back(a.begin(), a.end());
    const auto b = memory.reserve(of_checkpoint->table().slabs[i].bytes);
    REQUIRE(of_checkpoint->load(i, b).ok());
    found.emplace_back(b.begin(), b.end());
  }
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    INFO(table.tensors[t].name());
    CHECK(rows_of(of_checkpoint->table().tensors[t], found) == rows_of(table.tensors[t], expected));
  }
}

TEST_CASE("damage of a rank's rows is found, when they are loaded and in each sweep") {
  const TempDirectory temp;
  const auto file = packed(temp, wide_shape(), Format::kF32, MatrixLayout::kPanels16);
  const auto slabs = RankSlabs::open(file, wide_shape(), 1, 2, MatrixLayout::kPanels16).value();
  const TensorInfo& tensor = slabs->table().tensors.back();  // The head, which is whole
  AlignedBytes memory;
  const auto bytes = memory.reserve(slabs->table().slabs[tensor.first_slab].bytes);
  REQUIRE(slabs->load(tensor.first_slab, bytes).ok());
  const SlabRead read = slabs->reads(tensor.first_slab).front();
  {
    std::fstream damaged(temp / "m.spill", std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(static_cast<std::streamoff>(read.offset + 1000));
    damaged.put('\x55');
  }
  const Status streamed = read_as_stream(*slabs, tensor.first_slab, bytes);
  CHECK(streamed.code() == Code::kCorruption);
  CHECK_THAT(std::string(streamed.message()), Catch::Contains("m.spill"));
  CHECK(slabs->load(tensor.first_slab, bytes).code() == Code::kCorruption);
}

TEST_CASE("rows that come damaged from a sound file are read again") {
  const TempDirectory temp;
  const ModelShape shape = GENERATE(odd_shape(), wide_shape());
  const auto file = packed(temp, shape, Format::kF32, MatrixLayout::kPanels16);
  const auto slabs = RankSlabs::open(file, shape, 1, 2, MatrixLayout::kPanels16).value();
  AlignedBytes memory;
  for (uint32_t i = 0; i < slabs->table().slabs.size(); ++i) {
    const auto bytes = memory.reserve(slabs->table().slabs[i].bytes);
    REQUIRE(slabs->load(i, bytes).ok());
    const std::vector<std::byte> sound(bytes.begin(), bytes.end());
    // As if every read had brought other bytes.
    std::memset(bytes.data(), 0x33, bytes.size());
    CHECK(slabs->arrange(i, bytes, true).message() == "");
    CHECK(std::equal(sound.begin(), sound.end(), bytes.begin()));
    // Nobody looks where nobody asked.
    std::memset(bytes.data(), 0x33, bytes.size());
    CHECK(slabs->arrange(i, bytes, false).ok());
    CHECK_FALSE(std::equal(sound.begin(), sound.end(), bytes.begin()));
  }
}

TEST_CASE("a model that cannot be divided has no slabs for ranks") {
  const TempDirectory temp;
  const auto file = packed(temp, odd_shape(), Format::kF32, MatrixLayout::kPanels16);
  CHECK(RankSlabs::open(file, odd_shape(), 0, 3, MatrixLayout::kPanels16).status().code() ==
        Code::kInvalidArgument);
}

}  // namespace
}  // namespace spillway::rank_slabs_test
