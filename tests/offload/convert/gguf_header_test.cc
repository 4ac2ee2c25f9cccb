// The header of a GGUF file: what is read, and what is refused with file, key or tensor, and byte.
#include "offload/convert/gguf_header.h"

#include <catch2/catch.hpp>

#include "tests/support/gguf_writer.h"

namespace spillway::gguf_header_test {
namespace {

Result<GgufHeader> read(const Bytes& bytes) {
  const auto source = memory_source("some.gguf", bytes);
  return read_gguf_header(*source);
}

std::string refused(const Bytes& bytes) {
  const auto result = read(bytes);
  REQUIRE_FALSE(result.ok());
  const std::string message(result.status().message());
  CHECK_THAT(message, Catch::StartsWith("some.gguf: "));
  return message;
}

GgufWriter small() {
  GgufWriter writer;
  writer.add("a.u8", int64_t{200}, GgufType::kU8);
  writer.add("a.i16", int64_t{-3}, GgufType::kI16);
  writer.add("a.real", 0.5F);
  writer.add("a.flag", true);
  writer.add("a.text", std::string_view("h\xc3\xa9"));
  writer.add("a.texts", std::vector<std::string>{"x", "", "yz"});
  writer.add("a.numbers", std::vector<int32_t>{1, -2});
  writer.add("a.reals", std::vector<float>{0.25F});
  writer.add_tensor("first", {2, 3}, {1, 2, 3, 4, 5, 6});
  writer.add_tensor("second", 8, {1, 32}, Bytes(34));
  return writer;
}

TEST_CASE("metadata of every type and tensors are read, of both versions") {
  for (const uint32_t version : {2, 3}) {
    GgufWriter writer = small();
    writer.version = version;
    const auto result = read(writer.file());
    INFO(result.status().message());
    REQUIRE(result.ok());
    const GgufHeader& header = result.value();
    CHECK(header.version == version);
    const GgufMetadata& keys = header.metadata;
    CHECK(std::get<int64_t>(keys.at("a.u8").data) == 200);
    CHECK(std::get<int64_t>(keys.at("a.i16").data) == -3);
    CHECK(std::get<double>(keys.at("a.real").data) == 0.5);
    CHECK(std::get<bool>(keys.at("a.flag").data));
    CHECK(std::get<std::string>(keys.at("a.text").data) == "h\xc3\xa9");
    CHECK(std::get<std::vector<std::string>>(keys.at("a.texts").data)[2] == "yz");
    CHECK(std::get<std::vector<int64_t>>(keys.at("a.numbers").data) == std::vector<int64_t>{1, -2});
    CHECK(std::get<std::vector<double>>(keys.at("a.reals").data) == std::vector<double>{0.25});
    REQUIRE(header.tensors.size() == 2);
    CHECK(header.tensors[0].shape == std::vector<int64_t>{2, 3});
    CHECK(header.tensors[0].offset == header.data_offset);
    CHECK(header.tensors[0].bytes == 24);
    CHECK(header.tensors[1].format->name == "Q8_0");
    CHECK(header.tensors[1].offset == header.data_offset + 32);
    CHECK(header.data_offset % 32 == 0);
  }
}

TEST_CASE("another alignment is obeyed") {
  GgufWriter writer = small();
  writer = GgufWriter();
  writer.alignment = 256;
  writer.add("general.alignment", int64_t{256});
  writer.add_tensor("first", {1}, {1});
  writer.add_tensor("second", {1}, {2});
  const auto result = read(writer.file());
  REQUIRE(result.ok());
  CHECK(result->data_offset % 256 == 0);
  CHECK(result->tensors[1].offset == result->data_offset + 256);
  for (const int64_t wrong : {0, 4, 48, 1 << 21}) {
    GgufWriter other;
    other.add("general.alignment", wrong);
    CHECK_THAT(refused(other.file()), Catch::Contains("'general.alignment' at byte 24"));
  }
}

TEST_CASE("a file that ends early anywhere is refused") {
  const Bytes whole = small().file();
  REQUIRE(read(whole).ok());
  // Up to its padding the last tensor needs every byte.
  for (size_t bytes = 0; bytes < whole.size() - 30; ++bytes) {
    INFO(bytes);
    CHECK_FALSE(
        read(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes))).ok());
  }
  Bytes cut = whole;
  cut.resize(whole.size() - 40);
  CHECK_THAT(refused(cut), Catch::Contains("'second'") && Catch::Contains("cut off"));
  Bytes more = whole;
  more.resize(whole.size() + 64);
  CHECK_THAT(refused(more), Catch::Contains("behind the last tensor"));
}

TEST_CASE("files of other kinds and versions are named") {
  CHECK_THAT(refused(bytes_of("GGML and more bytes of it")), Catch::Contains("no GGUF file"));
  GgufWriter writer = small();
  writer.version = 0x03000000;
  CHECK_THAT(refused(writer.file()), Catch::Contains("big-endian"));
  writer.version = 1;
  CHECK_THAT(refused(writer.file()), Catch::Contains("version 1"));
  writer.version = 4;
  CHECK_THAT(refused(writer.file()), Catch::Contains("version 4"));
}

TEST_CASE("counts beyond the file are refused before memory is taken") {
  const auto with = [](uint64_t tensors, uint64_t keys) {
    Bytes bytes = bytes_of("GGUF");
    append_little(bytes, 3, 4);
    append_little(bytes, tensors, 8);
    append_little(bytes, keys, 8);
    bytes.resize(4096);
    return bytes;
  };
  CHECK_THAT(refused(with(uint64_t{1} << 60, 0)), Catch::Contains("tensors, the limit is"));
  CHECK_THAT(refused(with(900'000, 0)), Catch::Contains("900000 tensors, more than"));
  CHECK_THAT(refused(with(0, UINT64_MAX)), Catch::Contains("keys, the limit is"));
  GgufWriter writer;
  writer.add_raw("a.list", 9, gguf_list(GgufType::kU8, uint64_t{1} << 40, {}));
  CHECK_THAT(refused(writer.file()),
             Catch::Contains("'a.list' at byte 24") && Catch::Contains("elements"));
  writer = GgufWriter();
  writer.add_raw("a.list", 9, gguf_list(GgufType::kString, 1000, Bytes(100)));
  CHECK_THAT(refused(writer.file()), Catch::Contains("1000 elements, more than"));
  writer = GgufWriter();
  Bytes length;
  append_little(length, 1'000'000, 8);
  writer.add_raw("a.text", 8, length);
  CHECK_THAT(refused(writer.file()), Catch::Contains("'a.text'") && Catch::Contains("leaves"));
}

TEST_CASE("values that are no values are refused") {
  GgufWriter writer;
  writer.add_raw("a.key", 13, Bytes(8));
  CHECK_THAT(refused(writer.file()), Catch::Contains("'a.key'") && Catch::Contains("type 13"));
  writer = GgufWriter();
  writer.add("a.key", int64_t{2}, GgufType::kBool);
  CHECK_THAT(refused(writer.file()), Catch::Contains("neither true nor false"));
  writer = GgufWriter();
  writer.add("a.key", int64_t{-1}, GgufType::kU64);
  CHECK_THAT(refused(writer.file()), Catch::Contains("2^63"));
  writer = GgufWriter();
  writer.add_raw("a.key", 9, gguf_list(GgufType::kList, 1, Bytes(32)));
  CHECK_THAT(refused(writer.file()), Catch::Contains("list of lists"));
  writer = small();
  writer.add("a.u8", int64_t{1});
  CHECK_THAT(refused(writer.file()), Catch::Contains("'a.u8'") && Catch::Contains("already"));
}

TEST_CASE("tensors that contradict the file are refused by name") {
  const auto refused_tensor = [](uint32_t format, const std::vector<int64_t>& shape, size_t bytes) {
    GgufWriter writer;
    writer.add_tensor("odd", format, shape, Bytes(bytes));
    const std::string message = refused(writer.file());
    CHECK_THAT(message, Catch::Contains("'odd'"));
    return message;
  };
  CHECK_THAT(refused_tensor(16, {256}, 66),
             Catch::Contains("IQ2_XXS") && Catch::Contains("Q4_K") && Catch::Contains("byte 24"));
  CHECK_THAT(refused_tensor(200, {1}, 4), Catch::Contains("type 200"));
  CHECK_THAT(refused_tensor(2, {2, 48}, 64), Catch::Contains("multiple of the 32"));
  CHECK_THAT(refused_tensor(0, {0}, 4), Catch::Contains("dimension of 0"));
  CHECK_THAT(refused_tensor(0, {1, 1, 1, 1, 1}, 4), Catch::Contains("5 dimensions"));
  CHECK_THAT(refused_tensor(0, {}, 4), Catch::Contains("0 dimensions"));
  const int64_t large = int64_t{1} << 40;
  CHECK_THAT(refused_tensor(0, {large, large}, 4), Catch::Contains("numbers"));
  CHECK_THAT(refused_tensor(0, {large}, 4), Catch::Contains("more than the file's"));
  GgufWriter twice = small();
  twice.add_tensor("first", {1}, {1});
  CHECK_THAT(refused(twice.file()), Catch::Contains("'first' occurs twice"));
}

TEST_CASE("data that overlaps or leaves holes is refused") {
  for (const auto& [offset, what] : {std::pair<uint64_t, const char*>{0, "overlap"},
                                     {64, "hole"},
                                     {33, "hole"},
                                     {UINT64_MAX - 8, "hole"}}) {
    GgufWriter writer = small();
    writer.tensor_offset(1) = offset;
    CHECK_THAT(refused(writer.file()), Catch::Contains(what) && Catch::Contains("must start at"));
  }
}

TEST_CASE("tensors may lie in another order than they are listed") {
  GgufWriter writer = small();
  writer.tensor_offset(0) = 64;
  writer.tensor_offset(1) = 0;
  const auto result = read(writer.file());
  INFO(result.status().message());
  REQUIRE(result.ok());
  CHECK(result->tensors[0].name == "second");
}

}  // namespace
}  // namespace spillway::gguf_header_test
