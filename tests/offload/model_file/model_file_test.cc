// The packed file: what is written is read back, nothing half-written or changed is.
#include "offload/model_file/model_file.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "kernels/base/checked_math.h"
#include "offload/io/checksum.h"
#include "offload/model_file/model_file_table.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/seed.h"
#include "tests/support/temp_directory.h"

namespace spillway::model_file_test {
namespace {

std::string read_whole(const std::string& path) {
  return read_small_file(path, uint64_t{1} << 30).value();
}

ModelFileTable tiny_table() {
  ModelFileTable table =
      plan_model_file(checkpoint_shape(), Format::kBF16, MatrixLayout::kPanels16);
  table.source = "tiny 123";
  table.files = {{"vocab.json", "{}"}, {"merges.txt", std::string("\xff\0raw", 5)}};
  return table;
}

std::unique_ptr<ModelFileWriter> create(const std::string& path) {
  auto writer = ModelFileWriter::create(path, tiny_table());
  REQUIRE(writer.ok());
  return std::move(writer).value();
}

// Slab i is filled with the byte i + 1.
void write_slabs(ModelFileWriter& writer) {
  const auto& slabs = writer.table().slabs;
  for (uint32_t i = 0; i < slabs.size(); ++i) {
    REQUIRE(writer.write_slab(i, Bytes(slabs[i].bytes, static_cast<std::byte>(i + 1))).ok());
  }
}

std::string write_good(const TempDirectory& temp) {
  auto writer = create(temp / "m.spill");
  write_slabs(*writer);
  REQUIRE(writer->finish().ok());
  return temp / "m.spill";
}

TEST_CASE("a plan cuts every weight into slabs that tile the file") {
  for (const Format format : kFormats) {
    ModelShape shape = checkpoint_shape();
    shape.hidden = shape.embedding = 1024;
    shape.heads = shape.kv_heads = 16;
    shape.head_size = 64;
    shape.mlp = 4096;
    shape.vocabulary = 10'007;
    for (const MatrixLayout layout : {MatrixLayout::kPanels16, MatrixLayout::kPanels64}) {
      if (!layout_holds(layout, format)) continue;
      const ModelFileTable table = plan_model_file(shape, format, layout);
      uint64_t end = 0;
      for (const SlabInfo& slab : table.slabs) {
        CHECK(slab.offset == end);
        CHECK(slab.bytes % kFileAlignment == 0);
        CHECK(slab.bytes <= kSlabBytesMax);
        end += slab.bytes;
      }
      CHECK(end == table.weight_bytes());
      std::set<uint32_t> owned;
      for (const TensorInfo& tensor : table.tensors) {
        int64_t rows = 0;
        for (uint32_t i = 0; i < tensor.slab_count; ++i) {
          rows += tensor.rows_in_slab(i);
          const SlabInfo& slab = table.slabs[tensor.first_slab + i];
          CHECK(slab.layer == tensor.spec.layer);
          const size_t need = packed_bytes(tensor.layout, tensor.format, tensor.rows_in_slab(i),
                                           tensor.spec.columns);
          CHECK(tensor.offset_in_slab + need <= slab.bytes);
          const bool fresh = owned.insert(tensor.first_slab + i).second;
          CHECK((fresh || tensor.spec.kind == WeightKind::kVector));
        }
        CHECK(rows == tensor.spec.rows);
      }
      CHECK(owned.size() == table.slabs.size());
    }
  }
}

TEST_CASE("a row of slabs wider than the limit is one block of 64 rows") {
  ModelShape shape = checkpoint_shape();
  shape.mlp = 1 << 18;  // 64 x 262,144 floats are 64 MiB.
  const ModelFileTable table = plan_model_file(shape, Format::kF32, MatrixLayout::kPanels16);
  for (const TensorInfo& tensor : table.tensors) {
    if (tensor.spec.role == WeightRole::kMlpDownWeight) CHECK(tensor.slab_rows == 64);
  }
}

TEST_CASE("a written file is read back whole") {
  const TempDirectory temp;
  const auto file = ModelFile::open(write_good(temp));
  INFO(file.status().message());
  REQUIRE(file.ok());
  const ModelFileTable& table = file.value().table();
  CHECK(table.shape == checkpoint_shape());
  CHECK(table.format == Format::kBF16);
  CHECK(table.source == "tiny 123");
  CHECK(table.files == tiny_table().files);
  for (uint32_t i = 0; i < table.slabs.size(); ++i) {
    Bytes bytes(table.slabs[i].bytes);
    REQUIRE(file.value().read_slab(i, bytes).ok());
    CHECK(bytes == Bytes(bytes.size(), static_cast<std::byte>(i + 1)));
  }
}

TEST_CASE("two files of the same weights have different ids") {
  const TempDirectory temp;
  const auto first = ModelFile::open(write_good(temp)).value().table().file_id;
  CHECK(ModelFile::open(write_good(temp)).value().table().file_id != first);
}

TEST_CASE("the writer counts NaN and infinity where they are") {
  const TempDirectory temp;
  ModelFileTable plan = plan_model_file(checkpoint_shape(), Format::kF32, MatrixLayout::kPanels16);
  auto writer = ModelFileWriter::create(temp / "m.spill", plan).value();
  const auto& slabs = writer->table().slabs;
  const TensorInfo& norm = writer->table().tensors[2];  // The first layer's first vector.
  const TensorInfo& head = writer->table().tensors.back();
  REQUIRE(norm.spec.kind == WeightKind::kVector);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = -std::numeric_limits<float>::infinity();
  for (uint32_t i = 0; i < slabs.size(); ++i) {
    Bytes bytes(slabs[i].bytes);
    if (i == norm.first_slab) std::memcpy(bytes.data() + norm.offset_in_slab, &nan, 4);
    if (i == head.first_slab) {
      std::memcpy(bytes.data() + 40, &inf, 4);
      std::memcpy(bytes.data() + 80, &inf, 4);
      std::memcpy(bytes.data() + 84, &nan, 4);
    }
    REQUIRE(writer->write_slab(i, bytes).ok());
  }
  REQUIRE(writer->finish().ok());
  const auto file = ModelFile::open(temp / "m.spill");
  const auto& tensors = file.value().table().tensors;
  uint64_t total = 0;
  for (const TensorInfo& tensor : tensors) total += tensor.nan_count + tensor.inf_count;
  CHECK(total == 4);
  CHECK(tensors[2].nan_count == 1);
  CHECK(tensors.back().nan_count == 1);
  CHECK(tensors.back().inf_count == 2);
}

TEST_CASE("a failed or abandoned write leaves the old file alone") {
  const TempDirectory temp;
  write_file(temp / "m.spill", "the old one");
  {
    auto writer = create(temp / "m.spill");
    write_slabs(*writer);
  }
  CHECK(read_whole(temp / "m.spill") == "the old one");
  CHECK_FALSE(std::filesystem::exists(temp / "m.spill.partial"));
  // What a crash left behind is taken over.
  write_file(temp / "m.spill.partial", std::string(1 << 20, 'x'));
  auto writer = create(temp / "m.spill");
  write_slabs(*writer);
  REQUIRE(writer->finish().ok());
  CHECK(ModelFile::open(temp / "m.spill").ok());
  CHECK_FALSE(std::filesystem::exists(temp / "m.spill.partial"));
}

TEST_CASE("two writers of one file do not mix") {
  const TempDirectory temp;
  auto first = create(temp / "m.spill");
  const auto second = ModelFileWriter::create(temp / "m.spill", tiny_table());
  REQUIRE_FALSE(second.ok());
  CHECK_THAT(std::string(second.status().message()), Catch::Contains("another process"));
  write_slabs(*first);
  REQUIRE(first->finish().ok());
}

TEST_CASE("no room on the disk is said before the work, with needed and free") {
  const TempDirectory temp;
  ModelFileTable table = tiny_table();
  for (SlabInfo& slab : table.slabs) slab.bytes = uint64_t{1} << 50;
  const auto writer = ModelFileWriter::create(temp / "m.spill", std::move(table));
  REQUIRE_FALSE(writer.ok());
  CHECK(writer.status().code() == Code::kCapacity);
  CHECK_THAT(std::string(writer.status().message()), Catch::Contains("free"));
  CHECK_FALSE(std::filesystem::exists(temp / "m.spill.partial"));
}

TEST_CASE("the room of a packed file is known before it is written") {
  const TempDirectory temp;
  std::filesystem::create_symlink(temp / "m.spill", temp / "link");
  const auto before = ModelFileWriter::room(temp / "link", tiny_table());
  REQUIRE(before.ok());
  CHECK(before->path == temp / "m.spill");
  CHECK(before->free_bytes > 0);
  CHECK_FALSE(std::filesystem::exists(temp / "m.spill"));
  write_good(temp);
  const uint64_t bytes = std::filesystem::file_size(temp / "m.spill");
  CHECK(before->bytes >= bytes);
  CHECK(before->bytes <= bytes + bytes / 16);
  // What a crash left is taken over. (Others write to this disk meanwhile, but hardly as much.)
  constexpr uint64_t kLeft = uint64_t{32} << 20;
  write_file(temp / "m.spill.partial", std::string(kLeft, 'x'));
  const auto after = ModelFileWriter::room(temp / "m.spill", tiny_table());
  const auto beside = ModelFileWriter::room(temp / "n.spill", tiny_table());
  CHECK(after->free_bytes > beside->free_bytes + kLeft / 2);
  CHECK(ModelFileWriter::room("/dev/null", tiny_table()).status().code() == Code::kInvalidArgument);
}

TEST_CASE("a flipped bit anywhere is noticed") {
  const TempDirectory temp;
  const std::string path = write_good(temp);
  const std::string good = read_whole(path);
  const unsigned seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::minstd_rand random(seed);
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    const size_t at = random() % bad.size();
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    write_file(path, bad);
    const auto file = ModelFile::open(path);
    if (at < 2 * kSuperblockBytes) {
      CHECK(file.ok());  // One copy of the superblock is enough.
      continue;
    }
    if (!file.ok()) continue;  // In the table.
    size_t wrong = 0;
    for (uint32_t slab = 0; slab < file.value().table().slabs.size(); ++slab) {
      Bytes bytes(file.value().table().slabs[slab].bytes);
      wrong += file.value().read_slab(slab, bytes).code() == Code::kCorruption ? 1 : 0;
    }
    INFO("byte " << at);
    CHECK(wrong == 1);
  }
}

TEST_CASE("slabs that swapped places are noticed") {
  const TempDirectory temp;
  const std::string path = write_good(temp);
  const ModelFileTable table = ModelFile::open(path).value().table();
  uint32_t a = 0;
  while (table.slabs[a].bytes != table.slabs[a + 1].bytes) ++a;
  std::string bytes = read_whole(path);
  const std::string first = bytes.substr(table.slabs[a].offset, table.slabs[a].bytes);
  bytes.replace(table.slabs[a].offset, first.size(), bytes, table.slabs[a + 1].offset,
                first.size());
  bytes.replace(table.slabs[a + 1].offset, first.size(), first);
  write_file(path, bytes);
  const auto file = ModelFile::open(path);
  Bytes slab(first.size());
  CHECK_FALSE(file.value().read_slab(a, slab).ok());
  CHECK_FALSE(file.value().read_slab(a + 1, slab).ok());
}

TEST_CASE("a file cut off anywhere is refused") {
  const TempDirectory temp;
  const std::string path = write_good(temp);
  const std::string good = read_whole(path);
  for (size_t size = 0; size < good.size(); size += 509) {
    write_file(path, good.substr(0, size));
    CHECK_FALSE(ModelFile::open(path).ok());
  }
  write_file(path, good + "x");
  CHECK_FALSE(ModelFile::open(path).ok());
  CHECK_FALSE(ModelFile::open(temp.path()).ok());
  CHECK(ModelFile::open(temp / "nothing").status().code() == Code::kNotFound);
}

TEST_CASE("another version is refused by its number") {
  const TempDirectory temp;
  const std::string path = write_good(temp);
  std::string bytes = read_whole(path);
  for (const size_t copy : {size_t{0}, size_t{kSuperblockBytes}}) {
    bytes[copy + 8] = 2;
    const auto view = std::as_bytes(std::span(bytes)).subspan(copy, kSuperblockBytes - 8);
    const uint64_t checksum = seeded_checksum(view, 0);
    std::memcpy(bytes.data() + copy + kSuperblockBytes - 8, &checksum, 8);
  }
  write_file(path, bytes);
  const Status status = ModelFile::open(path).status();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Contains("version 2"));
}

// Builds that do not know windows read version 1 alone.
TEST_CASE("a table with a sliding window has a version of its own") {
  ModelFileTable table = tiny_table();
  const auto version = [&] {
    size_t json_bytes = 0;
    const std::string text = encode_table(table, &json_bytes);
    return nlohmann::json::parse(text.substr(0, json_bytes))["version"].get<int>();
  };
  CHECK(version() == 1);
  table.shape.sliding_window = 8;
  CHECK(version() == 2);
  for (SlabInfo& slab : table.slabs) slab.offset += kFirstSlabOffset;
  size_t json_bytes = 0;
  const std::string text = encode_table(table, &json_bytes);
  const uint64_t end = kFirstSlabOffset + table.weight_bytes();
  CHECK(decode_table(text, json_bytes, end).value().shape.sliding_window == 8);
}

// A table whose checksum is right but whose contents lie must not be believed either.
TEST_CASE("tables that lie are refused") {
  ModelFileTable good = tiny_table();
  for (SlabInfo& slab : good.slabs) slab.offset += kFirstSlabOffset;
  const uint64_t end = kFirstSlabOffset + good.weight_bytes();
  const auto decode = [&](const ModelFileTable& table, uint64_t slabs_end) {
    size_t json_bytes = 0;
    const std::string text = encode_table(table, &json_bytes);
    return decode_table(text, json_bytes, slabs_end);
  };
  REQUIRE(decode(good, end).ok());
  CHECK_FALSE(decode(good, end + kFileAlignment).ok());
  const auto lie = [&](auto change) {
    ModelFileTable table = good;
    change(table);
    CHECK_FALSE(decode(table, end).ok());
  };
  lie([](ModelFileTable& t) { t.slabs[1].offset += kFileAlignment; });
  lie([](ModelFileTable& t) { t.slabs[1].bytes += 1; });
  lie([](ModelFileTable& t) { t.slabs[1].bytes = 0; });
  lie([](ModelFileTable& t) { t.slabs[1].bytes = ~uint64_t{0} - 4095; });
  lie([](ModelFileTable& t) { t.slabs[1].layer = 7; });
  lie([](ModelFileTable& t) { t.slabs.pop_back(); });
  lie([](ModelFileTable& t) { t.tensors.pop_back(); });
  lie([](ModelFileTable& t) { std::swap(t.tensors[0], t.tensors[1]); });
  lie([](ModelFileTable& t) { t.tensors[0].first_slab = 1 << 20; });
  lie([](ModelFileTable& t) { t.tensors[0].first_slab = t.tensors[1].first_slab; });
  lie([](ModelFileTable& t) { t.tensors[0].slab_count = 2; });
  lie([](ModelFileTable& t) { t.tensors[0].slab_rows = 63; });
  lie([](ModelFileTable& t) { t.tensors[0].slab_rows = 64; });
  lie([](ModelFileTable& t) { t.tensors[0].offset_in_slab = 64; });
  lie([](ModelFileTable& t) { t.tensors[0].format = Format::kF32; });
  lie([](ModelFileTable& t) { t.tensors[0].format = Format::kF16; });
  lie([](ModelFileTable& t) { t.tensors[2].offset_in_slab = t.slabs[2].bytes - 4; });
  lie([](ModelFileTable& t) { t.tensors[2].offset_in_slab = 2; });
  lie([](ModelFileTable& t) { t.tensors[2].format = Format::kBF16; });
  lie([](ModelFileTable& t) { t.shape.vocabulary += 1; });
  lie([](ModelFileTable& t) { t.shape.layers = 1'000'000; });
  lie([](ModelFileTable& t) { t.files.resize(kEmbeddedFilesMax + 1); });
}

TEST_CASE("weights in several formats of few bits are planned and believed") {
  const ModelShape shape = checkpoint_shape();
  std::vector<Format> formats;
  for (size_t i = 0; i < weight_specs(shape).size(); ++i) {
    formats.push_back(i % 3 == 0 ? Format::kQ8_1 : Format::kQ4_1);
  }
  ModelFileTable table = plan_model_file(shape, Format::kQ4_1, MatrixLayout::kPanels16, formats);
  for (SlabInfo& slab : table.slabs) slab.offset += kFirstSlabOffset;
  CHECK(table.mixed());
  CHECK(table.formats_text() == "q4_1 and q8_1");
  size_t json_bytes = 0;
  const std::string text = encode_table(table, &json_bytes);
  const auto decoded = decode_table(text, text.size(), kFirstSlabOffset + table.weight_bytes());
  INFO(decoded.status().message());
  REQUIRE(decoded.ok());
  for (size_t i = 0; i < formats.size(); ++i) {
    if (decoded->tensors[i].spec.kind == WeightKind::kVector) continue;
    CHECK(decoded->tensors[i].format == formats[i]);
  }
  CHECK_FALSE(table.in_named_format());
  CHECK_FALSE(plan_model_file(shape, Format::kQ4_1, MatrixLayout::kPanels16).mixed());
}

TEST_CASE("the head of a model in q4 has 8 bits, and the name says so") {
  const ModelFileTable table =
      plan_model_file(checkpoint_shape(), Format::kQ4, MatrixLayout::kPanels16);
  for (const TensorInfo& tensor : table.tensors) {
    if (tensor.spec.kind == WeightKind::kVector) continue;
    CHECK(tensor.format == (tensor.spec.role == WeightRole::kHead ? Format::kQ8 : Format::kQ4));
  }
  CHECK(table.mixed());
  CHECK(table.in_named_format());
  CHECK(table.formats_text() == "q4 and q8");
  for (const Format format : kFormats) {
    if (format == Format::kQ4) continue;
    CHECK_FALSE(plan_model_file(checkpoint_shape(), format, MatrixLayout::kPanels16).mixed());
  }
}

TEST_CASE("what an earlier version called q8 is read as q8_1, which has its bytes") {
  ModelFileTable table =
      plan_model_file(checkpoint_shape(), Format::kQ8_1, MatrixLayout::kPanels16);
  for (SlabInfo& slab : table.slabs) slab.offset += kFirstSlabOffset;
  const uint64_t end = kFirstSlabOffset + table.weight_bytes();
  const auto text_of = [](const ModelFileTable& of) {
    size_t json_bytes = 0;
    return encode_table(of, &json_bytes);
  };
  std::string text = text_of(table);
  CHECK_THAT(text, Catch::Contains("\"version\":1"));
  for (size_t at = 0; (at = text.find("\"q8_1\"", at)) != std::string::npos;) {
    text.replace(at, 6, "\"q8\"");
  }
  const auto old = decode_table(text, text.size(), end);
  INFO(old.status().message());
  REQUIRE(old.ok());
  CHECK(old->format == Format::kQ8_1);
  CHECK(text_of(old.value()) == text_of(table));

  // Today's q8 has other bytes, and a version that builds from before refuse.
  ModelFileTable rows = plan_model_file(checkpoint_shape(), Format::kQ8, MatrixLayout::kPanels16);
  for (TensorInfo& tensor : rows.tensors) tensor.hadamard = false;
  for (SlabInfo& slab : rows.slabs) slab.offset += kFirstSlabOffset;
  const std::string text_of_rows = text_of(rows);
  CHECK_THAT(text_of_rows, Catch::Contains("\"version\":3"));
  const auto decoded =
      decode_table(text_of_rows, text_of_rows.size(), kFirstSlabOffset + rows.weight_bytes());
  INFO(decoded.status().message());
  REQUIRE(decoded.ok());
  CHECK(decoded->format == Format::kQ8);
  CHECK(decoded->tensors[0].format == Format::kQ8);
  // One weight of it in a file of others is enough.
  std::vector<Format> formats(weight_specs(checkpoint_shape()).size(), Format::kQ4_1);
  formats[0] = Format::kQ8;
  CHECK_THAT(
      text_of(plan_model_file(checkpoint_shape(), Format::kQ4_1, MatrixLayout::kPanels16, formats)),
      Catch::Contains("\"version\":3"));
}

TEST_CASE("matrices in q4 and q8 say that they were multiplied by Hadamard matrices") {
  const Format format = GENERATE(Format::kQ4, Format::kQ8, Format::kQ4_1, Format::kQ8_1);
  ModelFileTable table = plan_model_file(checkpoint_shape(), format, MatrixLayout::kPanels16);
  for (SlabInfo& slab : table.slabs) slab.offset += kFirstSlabOffset;
  const uint64_t end = kFirstSlabOffset + table.weight_bytes();
  const auto text_of = [](const ModelFileTable& of) {
    size_t json_bytes = 0;
    return encode_table(of, &json_bytes);
  };
  const bool has = format == Format::kQ4 || format == Format::kQ8;
  const std::string text = text_of(table);
  const auto decoded = decode_table(text, text.size(), end);
  REQUIRE(decoded.ok());
  for (const TensorInfo& tensor : decoded->tensors) {
    INFO(tensor.name());
    CHECK(tensor.hadamard == (has && tensor.spec.kind == WeightKind::kMatrix));
  }
  if (!has) return;
  // Builds from before refuse it, and files from before are read as what they are.
  CHECK_THAT(text, Catch::Contains("\"version\":4"));
  std::string old = text;
  old.replace(old.find("\"version\":4"), 11, "\"version\":3");
  CHECK_THAT(std::string(decode_table(old, old.size(), end).status().message()),
             Catch::Contains("hadamard"));
  for (TensorInfo& tensor : table.tensors) tensor.hadamard = false;
  const std::string before = text_of(table);
  CHECK(before.find("hadamard") == std::string::npos);
  const auto without = decode_table(before, before.size(), end);
  REQUIRE(without.ok());
  CHECK_FALSE(without->tensors.back().hadamard);
  // No table has it.
  table.tensors.front().hadamard = true;
  const std::string wrong = text_of(table);
  CHECK_FALSE(decode_table(wrong, wrong.size(), end).ok());
}

TEST_CASE("a table of 4-bit weights is believed only where they can lie and with their error") {
  ModelFileTable good = plan_model_file(checkpoint_shape(), Format::kQ4, MatrixLayout::kPanels16);
  for (SlabInfo& slab : good.slabs) slab.offset += kFirstSlabOffset;
  good.tensors[0].quantization = {0.25, 4.0, 0.125, 3};
  const uint64_t end = kFirstSlabOffset + good.weight_bytes();
  const auto decode = [&](const ModelFileTable& table, auto change) {
    size_t json_bytes = 0;
    std::string text = encode_table(table, &json_bytes);
    change(text);
    return decode_table(text, text.size(), end);
  };
  const auto same = [](std::string&) {};
  const auto decoded = decode(good, same);
  INFO(decoded.status().message());
  REQUIRE(decoded.ok());
  const QuantError error = decoded->quantization();
  CHECK(error.relative_rms() == 0.25);
  CHECK(error.error_max == 0.125);
  CHECK(error.saturated == 3);
  TensorInfo* const matrix = &*std::find_if(
      good.tensors.begin(), good.tensors.end(),
      [](const TensorInfo& tensor) { return tensor.spec.kind == WeightKind::kMatrix; });
  for (const MatrixLayout layout : {MatrixLayout::kPanels64, MatrixLayout::kRows}) {
    matrix->layout = layout;
    CHECK_FALSE(decode(good, same).ok());
  }
  matrix->layout = MatrixLayout::kPanels16;
  matrix->format = Format::kBF16;
  CHECK_FALSE(decode(good, same).ok());
  matrix->format = Format::kQ4;
  good.tensors[0].layout = MatrixLayout::kPanels16;  // A table.
  CHECK_FALSE(decode(good, same).ok());
  good.tensors[0].layout = MatrixLayout::kRows;
  const auto swap_text = [](const char* from, const char* to) {
    return [from, to](std::string& text) {
      const size_t at = text.find(from);
      REQUIRE(at != std::string::npos);
      text.replace(at, std::strlen(from), to);
    };
  };
  CHECK(decode(good, same).ok());
  CHECK_FALSE(decode(good, swap_text("\"error_max\"", "\"error_min\"")).ok());
  CHECK_FALSE(decode(good, swap_text("\"error_max\":0.125", "\"error_max\":-1")).ok());
  CHECK_FALSE(decode(good, swap_text("\"error_max\":0.125", "\"error_max\":null")).ok());
  CHECK_FALSE(decode(good, swap_text("\"quantization\"", "\"nothing\"")).ok());
}

}  // namespace
}  // namespace spillway::model_file_test
