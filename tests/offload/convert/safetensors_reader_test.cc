// The safetensors reader: what the format allows is read, everything else is refused by name.
#include "offload/convert/safetensors_reader.h"

#include <catch2/catch.hpp>
#include <chrono>

#include "tests/support/checkpoint_writer.h"

namespace spillway::safetensors_reader_test {
namespace {

Result<std::vector<StoredTensor>> read(Bytes bytes, bool lenient = false) {
  return read_safetensors(*memory_source("x.safetensors", std::move(bytes)), {lenient});
}

// Refused, and the message says `reason`.
void check_refused(std::string_view header, size_t data_bytes, const std::string& reason) {
  const auto result = read(safetensors_raw(header, Bytes(data_bytes)));
  INFO(header);
  REQUIRE_FALSE(result.ok());
  CHECK_THAT(std::string(result.status().message()), Catch::Contains(reason));
  CHECK_THAT(std::string(result.status().message()), Catch::Contains("x.safetensors"));
}

TEST_CASE("tensors of a good file come back with their place") {
  const std::vector<TensorData> tensors = {make_tensor("a", {2, 3}),
                                           make_tensor("b.c", {5}, DType::kBF16),
                                           make_tensor("scalar", {}, DType::kF16)};
  const Bytes file = safetensors_file(tensors);
  const auto result = read(file);
  INFO(result.status().message());
  REQUIRE(result.ok());
  REQUIRE(result.value().size() == 3);
  for (const TensorData& tensor : tensors) {
    const auto found = std::find_if(result.value().begin(), result.value().end(),
                                    [&](const auto& t) { return t.name == tensor.name; });
    REQUIRE(found != result.value().end());
    CHECK(found->shape == tensor.shape);
    CHECK(found->format->name == tensor.dtype);
    REQUIRE(found->bytes == tensor.data.size());
    CHECK(std::equal(tensor.data.begin(), tensor.data.end(),
                     file.begin() + static_cast<std::ptrdiff_t>(found->offset)));
  }
}

TEST_CASE("legal oddities of a header are read") {
  const std::string one = R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  for (const std::string& header :
       {"{" + one + "}   ", "{" + one + "}\n\t ", "{\"__metadata__\":{\"k\":\"v\"}," + one + "}",
        "{" + one + R"(,"empty":{"dtype":"F32","shape":[0,9],"data_offsets":[2,2]}})",
        std::string(R"({"e":{"shape":[1,2],"data_offsets":[0,2],"dtype":"F8_E4M3"}})"),
        std::string(R"({"f":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})")}) {
    INFO(header);
    CHECK(read(safetensors_raw(header, Bytes(2))).ok());
  }
  CHECK(read(safetensors_raw("{}", {})).value().empty());
}

TEST_CASE("white space in front of the header needs the lenient reader") {
  const Bytes file = safetensors_raw("  {}", {});
  const auto strict = read(file);
  REQUIRE_FALSE(strict.ok());
  CHECK_THAT(std::string(strict.status().message()), Catch::Contains("--lenient-header"));
  CHECK(read(file, true).ok());
}

TEST_CASE("every malformed header is refused with its reason") {
  const auto tensor = [](const char* fields) { return "{\"a\":{" + std::string(fields) + "}}"; };
  check_refused("[]", 0, "'{'");
  check_refused("", 0, "'{'");
  check_refused("\xef\xbb\xbf{}", 0, "'{'");
  check_refused("{}x", 0, "JSON");
  check_refused("{\"a\":1}", 0, "a number");
  check_refused("{\"a\":[]}", 0, "a list");
  check_refused("{\"a\":null}", 0, "null");
  check_refused(tensor(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])"), 4, "'F33'");
  check_refused(tensor(R"("dtype":3,"shape":[1],"data_offsets":[0,4])"), 4, "a number");
  check_refused(tensor(R"("dtype":["F32"],"shape":[1],"data_offsets":[0,4])"), 4, "a list");
  check_refused(tensor(R"("shape":[1],"data_offsets":[0,4])"), 4, "missing");
  check_refused(tensor(R"("dtype":"F32","data_offsets":[0,4])"), 4, "missing");
  check_refused(tensor(R"("dtype":"F32","shape":[1])"), 4, "missing");
  check_refused(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1)"), 4, "'more'");
  check_refused(tensor(R"("dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4])"), 4,
                "twice");
  check_refused(tensor(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4, "1.0");
  check_refused(tensor(R"("dtype":"F32","shape":[1e0],"data_offsets":[0,4])"), 4, "1e0");
  check_refused(tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4, "negative");
  check_refused(tensor(R"("dtype":"F32","shape":[-0],"data_offsets":[0,0])"), 0, "negative");
  check_refused(tensor(R"("dtype":"F32","shape":[true],"data_offsets":[0,4])"), 4, "true");
  check_refused(tensor(R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])"), 4, "a string");
  check_refused(tensor(R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])"), 4, "a list");
  check_refused(tensor(R"("dtype":"F32","shape":{},"data_offsets":[0,4])"), 4, "an object");
  check_refused(tensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"), 1,
                "8 dimensions");
  check_refused(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4])"), 4, "no range");
  check_refused(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,4])"), 4, "two numbers");
  check_refused(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4, "no range");
  check_refused(tensor(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"), 4,
                "2^63");
  check_refused(tensor(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4])"), 4,
                "2^63");
  check_refused(tensor(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0])"), 0,
                "overflows");
  check_refused(tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])"), 1, "overflows");
  check_refused(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4, "needs 8 bytes");
  check_refused("{\"__metadata__\":{\"a\":1}}", 0, "a number");
  check_refused("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "twice");
  check_refused("{\"" + std::string(1025, 'n') + "\":1}", 0, "1025 bytes");
  check_refused("{\"\xff\":1}", 0, "JSON");
}

TEST_CASE("bytes that hide behind a NUL are not read as a header") {
  const std::string_view header("{}\0garbage", 10);
  check_refused(header, 0, "NUL");
}

TEST_CASE("a name that occurs twice is refused") {
  check_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                2, "twice");
}

TEST_CASE("ranges that do not tile the data are refused") {
  const auto two = [](int a, int b, int c, int d) {
    const auto entry = [](const char* name, int begin, int end) {
      return "\"" + std::string(name) + R"(":{"dtype":"U8","shape":[)" +
             std::to_string(end - begin) + R"(],"data_offsets":[)" + std::to_string(begin) + "," +
             std::to_string(end) + "]}";
    };
    return "{" + entry("a", a, b) + "," + entry("b", c, d) + "}";
  };
  CHECK(read(safetensors_raw(two(0, 4, 4, 8), Bytes(8))).ok());
  CHECK(read(safetensors_raw(two(4, 8, 0, 4), Bytes(8))).ok());
  check_refused(two(0, 4, 3, 8), 8, "overlap");
  check_refused(two(0, 4, 0, 4), 4, "overlap");
  check_refused(two(0, 4, 5, 8), 8, "hole");
  check_refused(two(1, 4, 4, 8), 8, "hole");
  check_refused(two(0, 4, 4, 8), 9, "behind the last");
  check_refused(two(0, 4, 4, 8), 7, "leaves the file");
  check_refused(two(0, 0, 5, 8), 8, "hole");
}

TEST_CASE("a safetensors file cut off at any byte is refused") {
  const Bytes file = safetensors_file({make_tensor("a", {2, 3}), make_tensor("b", {4})});
  for (size_t size = 0; size < file.size(); ++size) {
    if (read(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size))).ok()) {
      FAIL("accepted " << size << " of " << file.size() << " bytes");
    }
  }
  REQUIRE(read(file).ok());
}

TEST_CASE("a header length from nowhere is refused before anything is allocated") {
  for (const uint64_t length : {uint64_t{100'000'001}, uint64_t{1} << 62, ~uint64_t{0}}) {
    Bytes file;
    append_little(file, length, 8);
    append(file, "{}");
    CHECK_FALSE(read(file).ok());
  }
}

TEST_CASE("a header of 200,000 tensors is read in well under a second a piece") {
  std::string header = "{";
  constexpr int kTensors = 200'000;
  for (int i = 0; i < kTensors; ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
              std::to_string(i + 1) + "]}";
  }
  const Bytes file = safetensors_raw(header + "}", Bytes(kTensors));
  const auto start = std::chrono::steady_clock::now();
  CHECK(read(file).value().size() == kTensors);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

}  // namespace
}  // namespace spillway::safetensors_reader_test
