// Every block format against PyPI's gguf (scripts/oracle/make_gguf_golden.py), to the bit.
#include "offload/convert/gguf_blocks.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/json_file.h"
#include "tests/support/places.h"

namespace spillway::gguf_blocks_test {
namespace {

Bytes of_hex(const std::string& text) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

const GgufBlockFormat& format_named(const std::string& name) {
  for (uint32_t id = 0; id < 64; ++id) {
    const GgufBlockFormat* format = gguf_block_format(id);
    if (format != nullptr && format->name == name) return *format;
  }
  FAIL("no format " << name);
  return *gguf_block_format(0);
}

nlohmann::json golden() {
  return test::read_json(test::source_directory() + "/tests/golden/gguf/blocks.json");
}

TEST_CASE("blocks are expanded to the numbers of the reference") {
  const nlohmann::json all = golden();
  REQUIRE(all.size() == 8);
  for (const auto& [name, entry] : all.items()) {
    INFO(name);
    const GgufBlockFormat& format = format_named(name);
    const Bytes blocks = of_hex(entry["blocks"]);
    const Bytes numbers = of_hex(entry["numbers"]);
    const size_t count = blocks.size() / format.bytes;
    REQUIRE(blocks.size() == count * format.bytes);
    REQUIRE(numbers.size() == count * format.elements * sizeof(float));
    std::vector<float> actual(count * format.elements);
    format.expand(blocks.data(), count, actual.data());
    CHECK(std::memcmp(actual.data(), numbers.data(), numbers.size()) == 0);
  }
}

TEST_CASE("codes, scales and minima of blocks stand for the numbers of the reference") {
  const nlohmann::json all = golden();
  size_t compared = 0;
  for (const auto& [name, entry] : all.items()) {
    const GgufBlockFormat& format = format_named(name);
    CHECK((format.split == nullptr) == (format.code_bits == 0));
    if (format.split == nullptr) continue;
    INFO(name);
    const Bytes blocks = of_hex(entry["blocks"]);
    const Bytes bytes = of_hex(entry["numbers"]);
    std::vector<float> numbers(bytes.size() / sizeof(float));
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    std::vector<uint8_t> codes(numbers.size());
    std::vector<GroupScale> scales(numbers.size() / kGgufGroup);
    format.split(blocks.data(), blocks.size() / format.bytes, codes.data(), scales.data());
    // The K formats' scales are products, rounded here to float16.
    const bool exact = format.elements == 32;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const GroupScale& group = scales[i / kGgufGroup];
      const float scale = f16_to_f32(group.scale), minimum = f16_to_f32(group.minimum);
      REQUIRE(codes[i] < 1 << format.code_bits);
      const float number = quantized_value(codes[i], scale, minimum);
      // Random blocks have scales of every size; infinite ones are quantised anew.
      if (!std::isfinite(numbers[i]) || !std::isfinite(scale) || !std::isfinite(minimum)) continue;
      ++compared;
      if (exact) {
        REQUIRE(number == numbers[i]);
      } else {
        const float terms = std::abs(scale) * codes[i] + std::abs(minimum);
        REQUIRE(std::abs(number - numbers[i]) <= terms * 0x1p-11f + 1e-6f);
      }
    }
  }
  CHECK(compared > 1000);
  CHECK(format_of_blocks(format_named("Q4_0")) == Format::kQ4_1);
  CHECK(format_of_blocks(format_named("Q4_K")) == Format::kQ4_1);
  CHECK(format_of_blocks(format_named("Q5_K")) == Format::kQ8_1);
  CHECK(format_of_blocks(format_named("Q6_K")) == Format::kQ8_1);
}

TEST_CASE("any range of the numbers of blocks can be read") {
  const nlohmann::json entry = golden()["Q4_K"];
  const GgufBlockFormat& format = format_named("Q4_K");
  Bytes file = bytes_of("front");
  const Bytes blocks = of_hex(entry["blocks"]);
  file.insert(file.end(), blocks.begin(), blocks.end());
  const Bytes numbers = of_hex(entry["numbers"]);
  const auto source = memory_source("blocks", file);
  for (const auto& [offset, bytes] : {std::pair<size_t, size_t>{0, numbers.size()},
                                      {0, 1},
                                      {1023, 2},
                                      {1024, 1024},
                                      {1030, 2000},
                                      {numbers.size() - 3, 3},
                                      {numbers.size(), 0}}) {
    INFO(offset << " " << bytes);
    Bytes part(bytes);
    REQUIRE(read_expanded(*source, 5, format, offset, part).ok());
    CHECK(std::equal(part.begin(), part.end(), numbers.begin() + static_cast<ptrdiff_t>(offset)));
  }
  Bytes beyond(numbers.size() + 4);
  CHECK(read_expanded(*source, 5, format, 0, beyond).code() == Code::kCorruption);
}

TEST_CASE("more numbers than fit into the buffer are read piece by piece") {
  const GgufBlockFormat& format = format_named("Q8_0");
  const size_t count = 3 * (size_t{1} << 17) / 32 + 1;
  Bytes file;
  for (size_t i = 0; i < count; ++i) {
    append_little(file, f32_to_f16(static_cast<float>(i % 100)), 2);
    for (size_t k = 0; k < 32; ++k) append_little(file, k, 1);
  }
  const auto source = memory_source("blocks", file);
  std::vector<float> numbers(count * 32);
  REQUIRE(read_expanded(*source, 0, format, 0, std::as_writable_bytes(std::span(numbers))).ok());
  size_t wrong = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    wrong += numbers[i] != static_cast<float>(i / 32 % 100) * static_cast<float>(i % 32);
  }
  CHECK(wrong == 0);
}

TEST_CASE("formats are known by number and by name") {
  CHECK(gguf_type_name(12) == "Q4_K");
  CHECK(gguf_type_name(16) == "IQ2_XXS");
  CHECK(gguf_type_name(77) == "type 77");
  CHECK(gguf_block_format(16) == nullptr);
  CHECK_THAT(gguf_block_format_names(), Catch::Contains("F32, F16, BF16, Q8_0, Q4_0"));
}

}  // namespace
}  // namespace spillway::gguf_blocks_test
