// Loading a packed file: the right bytes, repacked where the layout differs, nothing from a damaged
// slab.
#include "offload/weight_store.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>

#include "offload/convert/converter.h"
#include "tests/support/golden.h"

namespace spillway::weight_store_test {
namespace {

// A golden checkpoint packed in a layout, in a directory of its own.
struct Packed {
  Packed(MatrixLayout layout, Format format) : path(cache.path() + "/model.spill") {
    ConvertOptions options;
    options.format = format;
    options.layout = [layout](Format) { return layout; };
    const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
    const Result<ConvertReport> report = convert_checkpoint(checkpoint, path, options);
    INFO(report.status().message());
    REQUIRE(report.ok());
  }
  test::TemporaryCache cache;
  std::string path;
};

// Row-major copy of one matrix, whatever its layout; of 4-bit ones in float32.
std::vector<std::byte> plain(const WeightMatrix& matrix) {
  std::vector<std::byte> all;
  for (const WeightSlab& slab : matrix.slabs) {
    std::vector<std::byte> rows(static_cast<size_t>(slab.rows * matrix.columns) *
                                dtype_bytes(unpacked_type(matrix.format)));
    unpack_rows(matrix.layout, matrix.format, slab.data, slab.rows, matrix.columns, rows.data());
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

TEST_CASE("a file of another layout is repacked while it loads and holds the same numbers") {
  const auto device = open_cpu_device(2).value();
  // Another CPU's, and a GPU's, whose slabs may be smaller.
  const auto other =
      GENERATE(MatrixLayout::kPanels16, MatrixLayout::kPanels64, MatrixLayout::kRows);
  for (const Format format : kFormats) {
    const MatrixLayout native = device->matrix_layout(format), foreign = other;
    if (foreign == native || !layout_holds(foreign, format)) continue;
    INFO(format_name(format) << " in " << layout_name(foreign));
    const Packed here(native, format), elsewhere(foreign, format);
    const ModelFile here_file = ModelFile::open(here.path).value();
    const ModelFile elsewhere_file = ModelFile::open(elsewhere.path).value();
    const auto a = WeightStore::load(*device, here_file, {}).value();
    const auto b = WeightStore::load(*device, elsewhere_file, {}).value();
    CHECK_FALSE(a->repacked());
    CHECK(b->repacked());
    for (int64_t layer = 0; layer < a->shape().layers; ++layer) {
      const LayerWeights& x = *a->acquire(layer).value();
      const LayerWeights& y = *b->acquire(layer).value();
      CHECK(x.matrix(WeightRole::kQkvWeight).layout == native);
      CHECK(y.matrix(WeightRole::kQkvWeight).layout == native);
      CHECK(plain(x.matrix(WeightRole::kQkvWeight)) == plain(y.matrix(WeightRole::kQkvWeight)));
      CHECK(plain(x.matrix(WeightRole::kMlpDownWeight)) ==
            plain(y.matrix(WeightRole::kMlpDownWeight)));
      const float* bias = x.vector(WeightRole::kQkvBias);
      CHECK(std::equal(bias, bias + a->shape().qkv_width(), y.vector(WeightRole::kQkvBias)));
    }
    CHECK(plain(a->acquire_head().value()->matrix(WeightRole::kHead)) ==
          plain(b->acquire_head().value()->matrix(WeightRole::kHead)));
    // A tied head: the same numbers as the embedding, in another layout.
    if (!is_quantized(format))
      CHECK(plain(a->acquire_head().value()->matrix(WeightRole::kHead)) ==
            plain(a->acquire_embedding().value()->matrix(WeightRole::kTokenEmbedding)));
  }
}

TEST_CASE("a flipped bit anywhere in the weights is found, and the slab named") {
  const auto device = open_cpu_device(2).value();
  const Packed packed(device->matrix_layout(Format::kF32), Format::kF32);
  const ModelFileTable table = ModelFile::open(packed.path).value().table();
  for (const SlabInfo& slab :
       {table.slabs.front(), table.slabs[table.slabs.size() / 2], table.slabs.back()}) {
    const auto offset = static_cast<std::streamoff>(slab.offset + slab.bytes / 2);
    const auto flip = [&] {
      std::fstream file(packed.path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(offset);
      const char byte = static_cast<char>(file.get() ^ 0x10);
      file.seekp(offset);
      file.put(byte);
    };
    flip();
    const ModelFile file = ModelFile::open(packed.path).value();
    const Status status = WeightStore::load(*device, file, {}).status();
    INFO(status.message());
    CHECK(status.code() == Code::kCorruption);
    CHECK(status.message().find("slab") != std::string_view::npos);
    flip();
    CHECK(WeightStore::load(*device, file, {}).ok());
  }
}

TEST_CASE("dummy weights have the true shape, unit norms and no bias") {
  const auto device = open_cpu_device(2).value();
  const ModelShape shape =
      ModelFile::open(Packed(MatrixLayout::kPanels16, Format::kF32).path).value().table().shape;
  uint64_t last = 0, total_seen = 0;
  WeightStoreOptions options;
  options.progress = [&](uint64_t done, uint64_t total) {
    CHECK(done >= last);
    last = done;
    total_seen = total;
  };
  const auto store =
      WeightStore::dummy(*device, shape, Format::kBF16, 5, std::move(options)).value();
  CHECK(last == total_seen);
  CHECK(last == store->placement().memory_bytes);
  const LayerWeights& layer = *store->acquire(shape.layers - 1).value();
  for (int64_t i = 0; i < shape.hidden; ++i) {
    CHECK(layer.vector(WeightRole::kMlpNormWeight)[i] == 1.0f);
    CHECK(layer.vector(WeightRole::kMlpNormBias)[i] == 0.0f);
  }
  const auto numbers = plain(layer.matrix(WeightRole::kMlpUpWeight));
  double sum = 0, squares = 0;
  for (size_t i = 0; i < numbers.size(); i += 2) {
    uint16_t bits;
    std::memcpy(&bits, numbers.data() + i, 2);
    sum += bf16_to_f32(bits);
    squares += bf16_to_f32(bits) * bf16_to_f32(bits);
  }
  const double count = static_cast<double>(numbers.size() / 2);
  CHECK(std::abs(sum / count) < 0.002);
  CHECK(std::sqrt(squares / count) == Approx(0.02).epsilon(0.05));
}

TEST_CASE("a store of some layers loads these and no others, with the bits of one of all") {
  const auto device = open_cpu_device(2).value();
  const Packed packed(device->matrix_layout(Format::kF32), Format::kF32);
  const ModelFile file = ModelFile::open(packed.path).value();
  const auto whole = WeightStore::load(*device, file, {}).value();
  const int64_t layers = whole->shape().layers;
  REQUIRE(layers >= 2);
  uint64_t bytes = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    WeightStoreOptions options;
    options.layers = LayerRange{layer, 1};
    const auto one = WeightStore::load(*device, file, options).value();
    CHECK(one->layers() == LayerRange{layer, 1});
    bytes += one->placement().memory_bytes;
    if (layer == 0) {
      CHECK(plain(one->acquire_embedding().value()->matrix(WeightRole::kTokenEmbedding)) ==
            plain(whole->acquire_embedding().value()->matrix(WeightRole::kTokenEmbedding)));
    }
    const LayerWeights& x = *one->acquire(layer).value();
    const LayerWeights& y = *whole->acquire(layer).value();
    CHECK(plain(x.matrix(WeightRole::kQkvWeight)) == plain(y.matrix(WeightRole::kQkvWeight)));
    CHECK(plain(x.matrix(WeightRole::kMlpDownWeight)) ==
          plain(y.matrix(WeightRole::kMlpDownWeight)));
    const float* bias = x.vector(WeightRole::kQkvBias);
    CHECK(std::equal(bias, bias + whole->shape().qkv_width(), y.vector(WeightRole::kQkvBias)));
    if (layer + 1 == layers) {
      CHECK(plain(one->acquire_head().value()->matrix(WeightRole::kHead)) ==
            plain(whole->acquire_head().value()->matrix(WeightRole::kHead)));
    }
  }
  CHECK(bytes == whole->placement().memory_bytes);
}

}  // namespace
}  // namespace spillway::weight_store_test
