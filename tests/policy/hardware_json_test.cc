// Hardware profiles: what is written reads back, and every wrong field is refused by its path.
#include "policy/hardware_json.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/support/hardware.h"

namespace spillway::hardware_json_test {
namespace {

using nlohmann::json;

json good(bool discrete = true) {
  return json::parse(hardware_profile_json(test::sample_hardware(discrete)));
}

std::string refusal(const json& root) {
  const Status status = parse_hardware_profile(root.dump(), "h.json").status();
  CHECK(status.code() == Code::kInvalidArgument);
  return std::string(status.message());
}

// Of `root` with the value at `pointer` replaced, or taken out when it is discarded.
std::string refusal_with(const char* pointer, const json& value) {
  json root = good();
  REQUIRE(root.contains(json::json_pointer(pointer)));
  root[json::json_pointer(pointer)] = value;
  INFO(pointer << " = " << value.dump());
  return refusal(root);
}

std::string refusal_without(const char* parent, const char* key) {
  json root = good();
  REQUIRE(root[json::json_pointer(parent)].erase(key) == 1);
  return refusal(root);
}

TEST_CASE("a hardware profile reads back as it was") {
  for (const bool discrete : {true, false}) {
    const HardwareProfile before = test::sample_hardware(discrete);
    const auto after = parse_hardware_profile(hardware_profile_json(before), "h.json");
    INFO(after.status().message());
    REQUIRE(after.ok());
    const HardwareProfile& profile = after.value();
    CHECK(profile.name == before.name);
    CHECK(profile.measured_at == before.measured_at);
    CHECK(profile.compute.kind == (discrete ? "cuda" : "cpu"));
    CHECK(profile.compute.memory_read.value == before.compute.memory_read.value);
    CHECK(profile.compute.memory_read.low == before.compute.memory_read.low);
    CHECK(profile.compute.memory_read.high == before.compute.memory_read.high);
    CHECK(profile.compute.memory_read.samples == before.compute.memory_read.samples);
    CHECK(profile.compute.memory_read.source.empty());
    CHECK(profile.compute.prompt_attention.value == before.compute.prompt_attention.value);
    CHECK(profile.compute.decode_attention.source == before.compute.decode_attention.source);
    CHECK(profile.compute.decode_attention_q4.value == before.compute.decode_attention_q4.value);
    CHECK(profile.compute.decode_attention_q8.value == before.compute.decode_attention_q8.value);
    CHECK(profile.compute.decode_attention_shared.value ==
          before.compute.decode_attention_shared.value);
    CHECK(profile.compute.decode_attention_q4_shared.value ==
          before.compute.decode_attention_q4_shared.value);
    CHECK(profile.compute.decode_attention_q8_shared.value ==
          before.compute.decode_attention_q8_shared.value);
    CHECK(profile.compute.small_ops.value == before.compute.small_ops.value);
    REQUIRE(profile.compute.matrix.size() == before.compute.matrix.size());
    for (size_t i = 0; i < profile.compute.matrix.size(); ++i) {
      CHECK(profile.compute.matrix[i].format == before.compute.matrix[i].format);
      CHECK(profile.compute.matrix[i].rows == before.compute.matrix[i].rows);
      CHECK(profile.compute.matrix[i].outputs == before.compute.matrix[i].outputs);
      CHECK(profile.compute.matrix[i].inputs == before.compute.matrix[i].inputs);
      CHECK(profile.compute.matrix[i].rate.value == before.compute.matrix[i].rate.value);
    }
    CHECK(profile.host.memory_free_bytes.value == before.host.memory_free_bytes.value);
    CHECK(profile.host.decode_attention.value == before.host.decode_attention.value);
    REQUIRE(profile.link.has_value() == discrete);
    if (discrete) {
      CHECK(profile.link->both.value == before.link->both.value);
      CHECK(profile.link->round_trips.high == before.link->round_trips.high);
      REQUIRE(profile.link->small.size() == 1);
      CHECK(profile.link->small[0].bytes == before.link->small[0].bytes);
      CHECK(profile.link->small[0].to_host.value == before.link->small[0].to_host.value);
    }
    REQUIRE(profile.disk.read.size() == before.disk.read.size());
    CHECK(profile.disk.read[1].block_bytes == before.disk.read[1].block_bytes);
    CHECK(profile.disk.read[1].depth == before.disk.read[1].depth);
    CHECK(profile.disk.read[1].rate.value == before.disk.read[1].rate.value);
    CHECK(profile.disk.write[0].rate.low == before.disk.write[0].rate.low);
    CHECK(profile.disk.processor.value == before.disk.processor.value);
    // Twice is once.
    CHECK(hardware_profile_json(profile) == hardware_profile_json(before));
  }
}

TEST_CASE("a hardware profile says which products its 4-bit figures are of") {
  HardwareProfile before = test::sample_hardware(false);
  CHECK_FALSE(parse_hardware_profile(hardware_profile_json(before), "h").value().compute.in_int8);
  before.compute.in_int8 = true;
  const std::string text = hardware_profile_json(before);
  CHECK(parse_hardware_profile(text, "h").value().compute.in_int8);
  json root = json::parse(text);
  root["compute"]["quantized_compute"] = "int3";
  CHECK(refusal(root).find("quantized_compute is 'int3', must be 'int8'") != std::string::npos);
}

TEST_CASE("a hardware profile may have the peaks of instructions, and older ones have none") {
  HardwareProfile before = test::sample_hardware(false);
  REQUIRE(before.compute.peaks.empty());
  const std::string old = hardware_profile_json(before);
  CHECK(old.find("peaks") == std::string::npos);
  CHECK(parse_hardware_profile(old, "h").value().compute.peaks.empty());
  before.compute.peaks = {{"f32", "FMA", figure_of({2e11, 3e11, 1e11})},
                          {"int8", "DPBUSD", figure_of({8e11})}};
  const std::string text = hardware_profile_json(before);
  const HardwareProfile after = parse_hardware_profile(text, "h").value();
  REQUIRE(after.compute.peaks.size() == 2);
  CHECK(after.compute.peaks[0].arithmetic == "f32");
  CHECK(after.compute.peaks[0].instruction == "FMA");
  CHECK(after.compute.peaks[0].rate.high == 3e11);
  CHECK(after.compute.peaks[1].rate.value == 8e11);
  CHECK(hardware_profile_json(after) == text);
  json root = json::parse(text);
  root["compute"]["peaks"][1]["arithmetic"] = "int3";
  CHECK_THAT(refusal(root), Catch::Contains("compute.peaks[1]: arithmetic is 'int3'"));
  root["compute"]["peaks"][1]["arithmetic"] = "f32";
  CHECK_THAT(refusal(root), Catch::Contains("compute.peaks[1]: is there twice"));
}

TEST_CASE("what older hardware profiles call q8 is q8_1 now") {
  HardwareProfile profile = test::sample_hardware(false);
  const auto formats_of = [](const HardwareProfile& written) {
    std::vector<Format> formats;
    const auto read = parse_hardware_profile(hardware_profile_json(written), "h");
    for (const MatrixFigure& figure : read.value().compute.matrix) formats.push_back(figure.format);
    return formats;
  };
  const MatrixFigure q8{Format::kQ8, 1, 64, 64, figure_of({1e9})};
  const MatrixFigure q8_1{Format::kQ8_1, 1, 64, 64, figure_of({1e9})};
  profile.compute.matrix = {q8};
  CHECK(formats_of(profile) == std::vector{Format::kQ8_1});
  profile.compute.matrix = {q8_1, q8};
  CHECK(formats_of(profile) == std::vector{Format::kQ8_1, Format::kQ8});
}

TEST_CASE("another version of a hardware profile is refused by name") {
  CHECK_THAT(refusal_with("/version", 2), Catch::Contains("version 2"));
  CHECK_THAT(refusal_with("/version", "1"), Catch::Contains("version must be an integer"));
  CHECK_THAT(refusal_without("", "version"), Catch::Contains("version is missing"));
}

TEST_CASE("what is missing in a hardware profile is named with its path") {
  CHECK_THAT(refusal_without("", "compute"), Catch::Equals("h.json: compute is missing"));
  CHECK_THAT(refusal_without("", "link"), Catch::Equals("h.json: link is missing"));
  CHECK_THAT(refusal_without("/compute", "memory_bytes"),
             Catch::Equals("h.json: compute: memory_bytes is missing"));
  CHECK_THAT(refusal_without("/compute/matrix/1/flops_per_second", "high"),
             Catch::Equals("h.json: compute.matrix[1].flops_per_second: high is missing"));
  CHECK_THAT(refusal_without("/disk/read/1/bytes_per_second", "value"),
             Catch::Equals("h.json: disk.read[1].bytes_per_second: value is missing"));
  CHECK_THAT(refusal_with("/disk/write", json::array()),
             Catch::Equals("h.json: disk: write has no figures"));
  CHECK_THAT(refusal_with("/compute/matrix", json::array()),
             Catch::Equals("h.json: compute: matrix has no figures"));
}

TEST_CASE("unknown fields of a hardware profile are refused at every level") {
  for (const char* parent :
       {"", "/compute", "/compute/memory_bytes", "/compute/matrix/0",
        "/compute/matrix/0/flops_per_second", "/compute/decode_attention_bytes_per_second", "/host",
        "/host/memory_read_bytes_per_second", "/link", "/link/both_bytes_per_second",
        "/link/small_copies/0", "/disk", "/disk/read/0", "/disk/write/0/bytes_per_second"}) {
    json root = good();
    root[json::json_pointer(parent)]["sped"] = 1;
    INFO(parent);
    CHECK_THAT(refusal(root), Catch::Contains("unknown field 'sped'"));
  }
}

TEST_CASE("a figure of a hardware profile is a positive number with its spread or its source") {
  const char* value = "/host/memory_read_bytes_per_second/value";
  const std::string path = "h.json: host.memory_read_bytes_per_second: ";
  CHECK_THAT(refusal_with(value, 0),
             Catch::Equals(path + "value must be between 1 and 1e+18, not 0"));
  CHECK_THAT(refusal_with(value, -4.5),
             Catch::Contains(path + "value must be between 1 and 1e+18, not -4.5"));
  CHECK_THAT(refusal_with(value, 1e300), Catch::Contains("not 1e+300"));
  CHECK_THAT(refusal_with(value, nullptr), Catch::Equals(path + "value is missing"));
  CHECK_THAT(refusal_with(value, "fast"), Catch::Equals(path + "value must be a number"));
  CHECK_THAT(refusal_with("/host/memory_read_bytes_per_second", 5e9),
             Catch::Equals("h.json: host: memory_read_bytes_per_second must be an object"));
  CHECK_THAT(refusal_with("/host/memory_read_bytes_per_second/low", 4e15),
             Catch::Equals(path + "low is above value"));
  CHECK_THAT(refusal_with("/host/memory_read_bytes_per_second/high", 2),
             Catch::Equals(path + "high is below value"));
  CHECK_THAT(refusal_with("/host/memory_read_bytes_per_second/samples", 0),
             Catch::Contains(path + "samples must be between 1 and 1000000, not 0"));
  CHECK_THAT(refusal_with("/host/memory_read_bytes_per_second", {{"value", 5}, {"source", ""}}),
             Catch::Equals(path + "source is empty"));
  // The parser's own message: no such number exists.
  std::string text = good().dump();
  text.replace(text.find("\"value\":"), 8, "\"value\":1e999,\"x\":");
  CHECK_THAT(std::string(parse_hardware_profile(text, "h.json").status().message()),
             Catch::Contains("value is a number too large for any field"));
}

TEST_CASE("a hardware profile that contradicts itself is refused") {
  CHECK_THAT(refusal_with("/compute/kind", "tpu"), Catch::Contains("compute: kind is 'tpu'"));
  CHECK_THAT(refusal_with("/compute/kind", "cpu"), Catch::Contains("link is there"));
  CHECK_THAT(refusal_with("/compute/matrix/0/format", "i32"),
             Catch::Contains("compute.matrix[0]: format is 'i32'"));
  CHECK_THAT(refusal_with("/compute/matrix/0/rows", 64),
             Catch::Equals("h.json: compute.matrix[1]: rows are less than those before it"));
  CHECK_THAT(refusal_with("/compute/matrix/1/rows", 1),
             Catch::Equals("h.json: compute.matrix[1]: is there twice"));
  CHECK_THAT(refusal_with("/disk/read/1/depth", 1),
             Catch::Equals("h.json: disk.read[1]: is there twice"));
  CHECK_THAT(refusal_with("/host/memory_bytes", {{"value", 1}, {"source", "a joke"}}),
             Catch::Equals("h.json: host: memory_free_bytes is above memory_bytes"));
}

TEST_CASE("a text that is no hardware profile is refused") {
  for (const char* text : {"", "[]", "{", "{\"version\":1,\"version\":1}", "{}"}) {
    INFO(text);
    CHECK(parse_hardware_profile(text, "h").status().code() == Code::kInvalidArgument);
  }
  const std::string huge = "{" + std::string(kHardwareBytesMax, ' ') + "}";
  CHECK_THAT(std::string(parse_hardware_profile(huge, "h").status().message()),
             Catch::Contains("at most"));
}

}  // namespace
}  // namespace spillway::hardware_json_test
